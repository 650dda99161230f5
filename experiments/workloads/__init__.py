"""What the papers' applied experiments query: images and victims, metrics of classifiers, controllers."""

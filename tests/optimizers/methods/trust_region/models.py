"""Models of given rows, metric and hyper-parameters."""

from optimizers.methods.trust_region.region_model import RegionModel, scaled_data


def region_model(rows, heights, metric, shape):
    data, map = scaled_data(rows, heights, metric)
    return RegionModel(data.model(shape), map, 1.0)

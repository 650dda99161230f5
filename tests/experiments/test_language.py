"""Language models over clients: the tiny OPT, prompts and losses, bytes and budgets, real models from a folder."""

import dataclasses

import numpy as np
import pytest
import torch

from experiments import registry
from experiments.harness.records import to_csv
from experiments.papers.hiso import language
from experiments.papers.hiso import table2_table5_fig6 as tables
from experiments.papers.hiso.accounting import FIRST_ORDER, METHODS, SCALAR_ONLY, bytes_a_round
from experiments.running.runner import configured
from experiments.workloads import llm, sentences
from experiments.workloads.data import DataError
from experiments.workloads.prompts import IGNORED, PromptLoss, Prompts, f1
from experiments.workloads.sentences import Training
from experiments.workloads.tiny_opt import TinyOPT
from optimizers.comparison.records import where

EXPERIMENTS = tables.EXPERIMENTS
TABLE2, TABLE5, FIG6 = EXPERIMENTS
MODEL = TinyOPT(vocabulary=30, width=8, layers=2, heads=2, positions=16)


def parameters(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (MODEL.initial(0) + 0.3 * torch.randn(MODEL.dimension, generator=generator)).double()


def batch(n=4, length=9, seed=1):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(2, MODEL.vocabulary, (n, length), generator=generator)
    mask = torch.ones_like(tokens)
    for row in range(1, n):
        mask[row, :row] = 0
    return tokens * mask, mask


# The tiny OPT.


def test_the_architecture_is_opts():
    transformers = pytest.importorskip("transformers")
    config = transformers.OPTConfig(
        vocab_size=MODEL.vocabulary,
        hidden_size=MODEL.width,
        word_embed_proj_dim=MODEL.width,
        num_hidden_layers=MODEL.layers,
        num_attention_heads=MODEL.heads,
        ffn_dim=4 * MODEL.width,
        max_position_embeddings=MODEL.positions,
        dropout=0.0,
        pad_token_id=0,
    )
    theirs, x, (tokens, mask) = transformers.OPTForCausalLM(config).eval().double(), parameters(), batch()
    assert {name: tuple(p.shape) for name, p in theirs.named_parameters()} == MODEL.shapes
    assert [name for name, _ in theirs.named_parameters()] == list(MODEL.shapes)
    theirs.load_state_dict(MODEL.named(x), strict=False)
    with torch.no_grad():
        expected = theirs(input_ids=tokens, attention_mask=mask).logits
    found = MODEL.logits(x, tokens, mask)
    assert torch.allclose(found[mask == 1], expected[mask == 1], rtol=0, atol=1e-12)


def test_padding_and_what_comes_later_change_nothing():
    x, (tokens, mask) = parameters(), batch()
    found = MODEL.logits(x, tokens, mask)
    alone = MODEL.logits(x, tokens[3:, 3:], mask[3:, 3:])
    assert torch.allclose(found[3:, 3:], alone, atol=1e-12)
    shorter = MODEL.logits(x, tokens[:, :6], mask[:, :6])
    assert torch.allclose(found[:, :6][mask[:, :6] == 1], shorter[mask[:, :6] == 1], atol=1e-12)


def test_training_ends_sentences_and_is_kept(tmp_path):
    training = Training(sentences=200, steps=60, batch=32, rate=1e-2)
    model = sentences.tiny_opt(16, 1, 2)
    x = sentences.trained(model, training, str(tmp_path))
    tokens, mask, wanted = sentences.corpus(50, 9)

    def loss(at):
        found = model.logits(at, tokens, mask).flatten(0, 1)
        return float(torch.nn.functional.cross_entropy(found, wanted.flatten(), ignore_index=IGNORED))

    assert loss(x) < 0.5 * loss(model.initial(0))
    assert torch.equal(sentences.trained(model, training, str(tmp_path)), x)
    assert torch.equal(sentences.trained(model, training), x)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("task", sentences.TASKS)
def test_prompts_ask_for_what_the_corpus_never_says(task):
    prompts = sentences.prompts(task, 40, 3)
    said = set(sentences.corpus(200, 0)[0].unique().tolist())
    if task == "squad":
        assert all(row[row != IGNORED][-1] == prompts.end for row in prompts.answers)
        assert prompts.words(prompts.answers[0][:-1][prompts.answers[0][:-1] > 1].tolist())
    else:
        assert not set(prompts.choices) & said
        assert prompts.labels.sum() == 20
    assert set(prompts.tokens.unique().tolist()) - said
    assert len(prompts) == 40 and int(prompts.mask[:, -1].min()) == 1


# Losses.


def test_the_loss_of_choices_is_theirs_alone():
    tokens, mask = batch()
    labels, x = torch.tensor([0, 1, 1, 0]), parameters()
    loss = PromptLoss(MODEL, Prompts(tokens, mask, labels, choices=(5, 7)))
    scores = MODEL.logits(x, tokens, mask)[:, -1]
    by_hand = [-float(torch.log_softmax(scores[i, [5, 7]], 0)[label]) for i, label in enumerate(labels)]
    assert float(loss(x)) == pytest.approx(np.mean(by_hand), rel=1e-12)
    assert loss.score(x) == np.mean([(scores[i, 7] > scores[i, 5]) == bool(label) for i, label in enumerate(labels)])
    u = torch.randn(MODEL.dimension, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    slope = float(loss(x + 1e-6 * u) - loss(x - 1e-6 * u)) / 2e-6
    assert float(loss.gradient(x) @ u) == pytest.approx(slope, rel=1e-6)


def texts(answers):
    tokens, mask = batch(n=len(answers))
    longest = max(map(len, answers))
    padded = torch.tensor([[*answer, *[IGNORED] * (longest - len(answer))] for answer in answers])
    return PromptLoss(MODEL, Prompts(tokens, mask, torch.zeros(len(answers)), answers=padded, end=1))


def test_the_loss_of_a_text_is_of_each_of_its_tokens():
    answers, x = [[4, 6, 1], [9, 1]], parameters()
    loss, terms = texts(answers), []
    for row, answer in enumerate(answers):
        own = loss.given.mask[row].bool()
        so_far = loss.given.tokens[row, own].tolist()
        for token in answer:
            seen = torch.tensor([so_far])
            terms.append(-float(torch.log_softmax(MODEL.logits(x, seen, torch.ones_like(seen))[0, -1], 0)[token]))
            so_far.append(token)
    assert float(loss(x)) == pytest.approx(np.mean(terms), rel=1e-10)


def test_texts_are_decoded_greedily_and_compared_by_words():
    x, loss = parameters(), texts([[4, 6, 1], [9, 8, 1]])
    found = []
    for row in range(2):
        so_far = loss.given.tokens[row, loss.given.mask[row].bool()].tolist()
        start = len(so_far)
        for _ in range(2):
            seen = torch.tensor([so_far])
            so_far.append(int(MODEL.logits(x, seen, torch.ones_like(seen))[0, -1].argmax()))
        found.append(so_far[start:])
    right = texts([[*answer, 1] for answer in found])
    assert 1 not in found[0] + found[1] and right.score(x) == 1.0
    half = texts([[found[0][0], 29, 1], [*found[1], 1]])
    assert 29 not in found[0] and half.score(x) == 0.75


def test_f1_is_squads():
    assert f1(["red", "cup"], ["red", "hat"]) == 0.5
    assert f1(["red"], ["red", "cup"]) == pytest.approx(2 / 3)
    assert f1([], []) == 1.0 and f1([], ["cup"]) == 0.0 and f1(["a", "a"], ["a"]) == pytest.approx(2 / 3)
    assert llm.normalized("The  Red-cup, an Hat!") == ["redcup", "hat"]


# The federation.


def test_prompts_are_dealt_once():
    labels = np.arange(240) % 2
    dealt = language.deal(labels, 6, 20, 3)
    assert [len(rows) for rows in dealt] == [20] * 6 and len(set(np.concatenate(dealt))) == 120
    shares = [labels[rows].mean() for rows in dealt]
    assert max(shares) - min(shares) > 0.3
    assert [len(rows) for rows in language.deal(np.zeros(30), 3, 10, 0)] == [10] * 3
    with pytest.raises(DataError, match="more than the 30 available rows"):
        language.deal(np.zeros(30), 4, 10, 0)


@pytest.mark.parametrize("method", [*METHODS, "hiso_scalar"])
def test_bytes_and_queries_are_the_rules(method):
    settings = dataclasses.replace(TABLE5.settings("quick"), rounds=5, first_order_rounds=5)
    problem = language.problem_of(settings, "opt-125m", "sst2", 0)
    rows, federation = language.train(settings, problem, method, language.RATES[method], 0)
    d, ledger, R = problem.x0.numel(), federation.ledger, 5
    assert [row["round"] for row in rows] == [0, 2, 4, 5]
    counted = language.confirmed_bytes(settings, method, federation)
    if method in SCALAR_ONLY:
        assert counted == 40 == bytes_a_round(method, d, 5)
        last = [max((row["round"] for row in ledger.to_rows() if row["client"] == c), default=1) for c in range(6)]
        assert ledger.total("payload_down") == sum(20 * (r - 1) for r in last)
    else:
        assert counted == 8 * d
        assert ledger.total("payload_down") == 4 * d * 2 * R
    assert ledger.total("payload_up") == counted // 2 * 2 * R
    first = method in FIRST_ORDER
    assert ledger.total("queries") == 2 * R * (1 if first else 6)
    assert ledger.total("gradients") == (2 * R if first else 0)


def test_the_same_seed_gives_the_same_rows_and_methods_are_paired():
    settings = TABLE2.settings("quick")
    rows = TABLE2.run(settings, [1])
    assert to_csv(rows) == to_csv(TABLE2.run(settings, [1]))
    starts = {
        task: {row["value"] for row in where(rows, quantity="score", round=0, task=task)} for task in settings.tasks
    }
    assert all(len(values) == 1 for values in starts.values())


@pytest.mark.parametrize(("method", "rate"), [("fedavg", 0.03), ("decomfl", 3e-3)])
def test_tuning_lowers_the_clients_loss(method, rate):
    settings = dataclasses.replace(TABLE5.settings("quick"), rounds=30)
    settings = dataclasses.replace(settings, first_order_rounds=30, every=30)
    problem = language.problem_of(settings, "opt-125m", "squad", 0)
    _, federation = language.train(settings, problem, method, rate, 0)
    before, after = (
        np.mean([float(client(x)) for client in problem.clients]) for x in (problem.x0, federation.server.x)
    )
    assert after < before - 0.1


def scores(method, values, seed=0):
    base = {"seed": seed, "model": "opt-350m", "task": "qqp", "method": method}
    rows = [base | {"round": 10 * i, "value": v, "quantity": "score"} for i, v in enumerate(values)]
    return [*rows, base | {"round": 1, "value": 40, "quantity": "bytes"}]


def test_rounds_until_a_score_and_those_that_do_not_reach_it():
    rows = [r for seed in (0, 1) for r in scores("decomfl", [0.5, 0.6, 0.8, 0.7], seed)]
    rows += scores("hiso", [0.5, 0.8, 0.9, 0.7], 0) + scores("hiso", [0.5, 0.6, 0.7, 0.7], 1)
    cell = {"model": "opt-350m", "task": "qqp"}
    rounds, reached = tables.reached(rows, "hiso", cell)
    assert rounds.tolist() == [10.0, 30.0] and reached.tolist() == [True, False]
    assert tables.reached(rows, "decomfl", cell)[0].tolist() == [20.0, 20.0]
    assert language.bytes_until_best(rows, method="hiso").tolist() == [800.0, 800.0]
    settings = dataclasses.replace(TABLE2.settings("quick"), methods=("decomfl", "hiso"))
    verdict = tables.claims_of_table2(settings, rows)[0]
    assert verdict.estimate == pytest.approx(np.mean(np.log10([10 / 20, 30 / 20])))
    faster = [r for seed in (0, 1) for r in scores("decomfl", [0.5, 0.6, 0.8], seed) + scores("hiso", [0.5, 0.9], seed)]
    assert tables.claims_of_table2(settings, faster)[0].status == "reproduced"


def test_printed_numbers_stand_in_their_cells():
    settings = dataclasses.replace(TABLE5.settings("quick"), methods=("fedzo", "hiso"))
    rows = [r for seed in (0, 1) for m in settings.methods for r in scores(m, [0.5, 0.6, 0.8], seed)]
    found = tables.table5(settings, rows)
    assert [dict(zip(found.columns, row, strict=True))["paper"] for row in found.rows] == [
        "61.22% (0.66 TB)",
        "62.49% (18.63 KB)",
    ]
    rows = [r for seed in (0, 1) for m in tables.PAIRED for r in scores(m, [0.5, 0.6, 0.8], seed)]
    found = tables.table2(TABLE2.settings(), rows)
    (row,) = (dict(zip(found.columns, row, strict=True)) for row in found.rows)
    assert (row["paper, DeComFL"], row["paper, HiSo"]) == ("775 (30.35 KB)", "425 (16.64 KB)")
    assert "paper, HiSo, scalar H" not in row
    assert tables.printed("hiso", {"model": "opt-125m", "task": "qqp"}) == ""
    assert language.in_units(200 * 40) == "7.81 KB" and language.in_units(40) == "40 B"


def test_bytes_are_scaled_to_the_size_that_a_model_is_named_by():
    rows = scores("fedzo", [0.5, 0.6, 0.8]) + scores("hiso", [0.5, 0.8])
    cell = {"model": "opt-350m", "task": "qqp"}
    assert tables.at_printed_size(TABLE5.settings(), rows, "fedzo", cell).tolist() == [20 * 8 * 350e6]
    assert tables.at_printed_size(TABLE5.settings(), rows, "hiso", cell).tolist() == [10 * 40]


# Real models and data.


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: e.id)
def test_without_data_the_stand_in_is_named(experiment, tmp_path):
    assert configured(experiment, "quick", None, tmp_path).data == ""
    settings = experiment.settings("paper")
    assert "tiny OPTs" in experiment.stands_in(settings) and "OPT-1.3B" in experiment.stands_in(settings)
    assert experiment.stands_in(dataclasses.replace(settings, data="x")) == ""


def test_a_missing_extra_names_the_pip_command(tmp_path, monkeypatch):
    monkeypatch.setitem(registry.EXTRAS, "llm", ("a_package_that_is_not_there",))
    (tmp_path / "opt-125m").mkdir()
    (tmp_path / "sst2").mkdir()
    with pytest.raises(ValueError, match=r"in a checkout '\./experiments\[llm\]'"):
        configured(TABLE5, "quick", None, tmp_path)


SENTENCES = {
    "sst2": {"sentence": ["a good film ", "a bad film", "good", "bad plot"] * 10, "label": [1, 0, 1, 0] * 10},
    "qqp": {"question1": ["what is it ?"] * 20, "question2": ["it is what ?"] * 20, "label": [1, 0] * 10},
    "squad": {
        "title": ["film"] * 20,
        "context": ["the film is a good film", "a bad plot"] * 10,
        "question": ["what is good ?", "what is bad ?"] * 10,
        "answers": [{"text": ["film"], "answer_start": [4]}, {"text": ["plot film"], "answer_start": [6]}] * 10,
    },
}


def save_tasks(folder):
    datasets = pytest.importorskip("datasets")
    for task, columns in SENTENCES.items():
        split = datasets.Dataset.from_dict(columns)
        datasets.DatasetDict({"train": split, "validation": split}).save_to_disk(str(folder / task))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A random OPT with a tokenizer of words, and three data sets, as transformers and datasets save them."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("data")
    words = "a the film plot good bad is it what ? : It was terrible great No Yes Title Context Question Answer First"
    known = {word: i for i, word in enumerate(f"<pad> </s> <unk> {words} Second question Do they ask same".split())}
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="<unk>"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="</s>", unk_token="<unk>", pad_token="<pad>"
    )
    config = transformers.OPTConfig(
        vocab_size=len(known),
        hidden_size=16,
        word_embed_proj_dim=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        ffn_dim=32,
        max_position_embeddings=64,
        do_layer_norm_before=False,
        pad_token_id=0,
        eos_token_id=1,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.OPTForCausalLM(config).save_pretrained(folder / "opt-350m")
    tokenizer.save_pretrained(folder / "opt-350m")
    save_tasks(folder)
    return folder


def test_a_saved_model_is_a_function_of_its_weights(data):
    import transformers

    model, saved = (
        llm.load_model(data / "opt-350m"),
        transformers.AutoModelForCausalLM.from_pretrained(data / "opt-350m").eval(),
    )
    prompts = llm.load_prompts(data, "squad", "opt-350m", "train", 6, 0)
    assert model.dimension == sum(p.numel() for p in saved.parameters())
    with torch.no_grad():
        expected = saved(input_ids=prompts.tokens, attention_mask=prompts.mask).logits
    assert torch.allclose(model.logits(model.start, prompts.tokens, prompts.mask), expected, atol=1e-6)
    moved = model.start.clone()
    moved[: 16 * 8] += 0.1  # of the embedding, which is the head too
    assert not torch.allclose(model.logits(moved, prompts.tokens, prompts.mask), expected, atol=1e-3)
    loss = PromptLoss(model, prompts)
    slope = loss.gradient(model.start)
    step = 1e-2 * slope / slope.norm()
    assert float(loss(model.start - step)) < float(loss(model.start)) - 5e-3 * float(slope.norm())
    assert 0.0 <= loss.score(model.start) <= 1.0


def test_saved_data_become_prompts(data):
    known = llm._tokenizer(data / "opt-350m")
    sst2 = llm.load_prompts(data, "sst2", "opt-350m", "train", 1000, 0)
    assert len(sst2) == 40 and known.convert_ids_to_tokens(list(sst2.choices)) == ["terrible", "great"]
    texts = [known.decode(row[mask == 1]) for row, mask in zip(sst2.tokens, sst2.mask, strict=True)]
    right = {"a good film It was": 1, "a bad film It was": 0, "good It was": 1, "bad plot It was": 0}
    assert [right[text] for text in texts] == sst2.labels.tolist()
    squad = llm.load_prompts(data, "squad", "opt-350m", "validation", 1000, 0)
    answers = {
        tuple(squad.words([token for token in row if token not in (IGNORED, 1)])) for row in squad.answers.tolist()
    }
    assert answers == {("film",), ("plot", "film")} and squad.end == 1


def test_real_models_and_data_go_through_the_whole_experiment(data):
    experiment = TABLE5
    quick = experiment.settings("quick")
    settings = dataclasses.replace(quick, models=("opt-125m", "opt-350m"), client_prompts=1, data=str(data))
    language.check(settings)
    rows = experiment.run(settings, [0, 1])
    assert [*language.cells_of(settings, rows).values()] == [{"model": "opt-350m", "task": t} for t in settings.tasks]
    d = llm.load_model(data / "opt-350m").dimension
    assert {row["value"] for row in where(rows, quantity="bytes")} <= {40, 8 * d}
    assert to_csv(experiment.run(settings, [1])) == to_csv([row for row in rows if row["seed"] == 1])
    assert all(np.isfinite(verdict.estimate) for verdict in experiment.claims(settings, rows))
    assert "stand-in" not in experiment.figures(settings, rows)[""].get_suptitle()


def test_data_that_are_not_what_is_expected_are_refused_by_name(data, tmp_path):
    datasets = pytest.importorskip("datasets")
    quick = dataclasses.replace(TABLE5.settings("quick"), models=("opt-125m",), data=str(tmp_path))
    (tmp_path / "sst2").mkdir()
    with pytest.raises(DataError, match="has no model: at least one of opt-125m is needed"):
        language.check(quick)
    (tmp_path / "opt-125m").mkdir()
    with pytest.raises(DataError, match=r"opt-125m has no config\.json"):
        language.check(quick)
    (tmp_path / "opt-125m" / "config.json").write_text("{}")
    with pytest.raises(DataError, match="opt-125m has no causal language model"):
        language.check(quick)
    with pytest.raises(DataError, match="sst2 was not written by datasets' save_to_disk"):
        llm.load_task(tmp_path / "sst2", "train")
    with pytest.raises(DataError, match="qqp is not a folder"):
        llm.load_task(tmp_path / "qqp", "train")
    datasets.Dataset.from_dict({"sentence": ["good"]}).save_to_disk(str(tmp_path / "one" / "sst2"))
    with pytest.raises(DataError, match="should have the splits train and validation"):
        llm.load_task(tmp_path / "one" / "sst2", "train")
    wrong = datasets.Dataset.from_dict({"text": ["good"], "label": [1]})
    datasets.DatasetDict({"train": wrong, "validation": wrong}).save_to_disk(str(tmp_path / "two" / "sst2"))
    with pytest.raises(DataError, match="must have rows with the columns sentence"):
        llm.load_task(tmp_path / "two" / "sst2", "train")
    hidden = datasets.Dataset.from_dict({"sentence": ["good"], "label": [-1]})
    datasets.DatasetDict({"train": hidden, "validation": hidden}).save_to_disk(str(tmp_path / "three" / "sst2"))
    (tmp_path / "three" / "opt-350m").symlink_to(data / "opt-350m")
    with pytest.raises(DataError, match="labels must be 0 and 1, it has -1 too"):
        llm.load_prompts(tmp_path / "three", "sst2", "opt-350m", "train", 1, 0)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("method", ["fedadam", "hiso"])
def test_cuda_tunes_the_stand_in(method):
    settings = dataclasses.replace(TABLE5.settings("quick"), device="cuda")
    problem = language.problem_of(settings, "opt-125m", "squad", 0)
    rows, federation = language.train(settings, problem, method, language.RATES[method], 0)
    assert federation.server.x.is_cuda and all(0.0 <= row["value"] <= 1.0 for row in rows)
    here = language.problem_of(dataclasses.replace(settings, device="cpu"), "opt-125m", "squad", 0)
    assert float(problem.test(problem.x0)) == pytest.approx(float(here.test(here.x0)), rel=1e-4)

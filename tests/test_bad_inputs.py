"""Inputs that once were accepted in silence, or ended in an error of another library."""

import math
import warnings

import pytest
import torch

from lit_sparse import hf, random, runs, text
from lit_sparse.callbacks import BasesPlot, CountLogger, draw_attention
from lit_sparse.callbacks.weights.named_weights import find_weights
from lit_sparse.cli import build_cli
from lit_sparse.coresets import (
    Coreset,
    Examples,
    FileVectors,
    GaussianPosterior,
    LogisticLikelihood,
    LogLikelihoodVectors,
    NormalLikelihood,
    PoissonLikelihood,
    SelectionState,
    Uniform,
)
from lit_sparse.coresets.posteriors import gaussian_mean_posterior, map_distance
from lit_sparse.data import (
    CaliforniaHousingDataModule,
    DigitsDataModule,
    FeatureDependentNoise,
    ImageFolderDataModule,
    RadialBases,
    Ragged,
    SymmetricNoise,
    SyntheticRegressionDataModule,
)
from lit_sparse.errors import LitSparseError
from lit_sparse.estimators import Marginalize, RunningMean, TopKMarginalize, with_gradient_of
from lit_sparse.export import decompose, export_onnx
from lit_sparse.ground.directions import directions
from lit_sparse.mappings import FenchelYoungLoss, JumpReLU, LearnableEntmax, RegularizedArgmax, Sparsemax
from lit_sparse.mappings.functional import fusedmax, jump_relu
from lit_sparse.metrics import (
    Bleu,
    DeadFraction,
    ExplainedVariance,
    MeanOverExamples,
    MessageStructure,
    positional_disentanglement,
    tied_groups,
    topographic_similarity,
)
from lit_sparse.models import (
    BayesianRegression,
    EntailmentClassifier,
    EntropicTransport,
    RobustClassifier,
    SemiSupervisedVAE,
    Seq2Seq,
    mean_metrics,
)
from lit_sparse.nn import (
    MLP,
    EntailmentNetwork,
    EntailmentPredictor,
    LinearFenchelYoungLoss,
    MultiheadAttention,
    NoiseBases,
    RecurrentBody,
    SampleBases,
    SourceEncoder,
    WordVectors,
    attention,
    beam_search,
    sparse_decode,
    sparse_encode,
)
from lit_sparse.risks import CVaR, UnbalancedOTDRO
from lit_sparse.runs.config_files import check_empty
from lit_sparse.structures import Assignment, Or, Sequence, ShortestPath, Tree, Xor
from lit_sparse.testing import concrete_subclasses
from lit_sparse.text import Vocabulary
from lit_sparse.transport import GaussianMixture, dual_value, log_plan_density

X, CORESET = torch.randn(3, 5), Coreset(torch.tensor([0]), torch.ones(1), 0.0, size=2)
WORDS = Vocabulary.from_tokens(["a", "b"])
BODY, PAIRS = RecurrentBody(4, 1).bind(Sparsemax()), EntailmentNetwork(Sparsemax(), 4, 2)
CLASSES = SemiSupervisedVAE(Sparsemax(), Marginalize(), in_features=4, style_features=4)
CLASSIFIER = EntailmentClassifier(Sparsemax(), width=4, vector_size=4).build({"text": WORDS})
WRITER = Seq2Seq(Sparsemax(), RecurrentBody(4, 1)).build({"source": WORDS, "target": WORDS})
ID, ONE = torch.tensor([[1]]), torch.tensor([1])
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # newer versions of torch deprecate such tensors
    QUANTIZED = torch.quantize_per_tensor(torch.ones(5, 5), 0.1, 0, torch.quint8)


class Model(torch.nn.Module):
    """A model of tokens whose loss does not depend on its second part."""

    def __init__(self):
        super().__init__()
        self.embed, self.unused = torch.nn.Embedding(9, 4), torch.nn.Embedding(9, 4)

    def forward(self, input_ids):
        self.unused(input_ids)
        return self.embed(input_ids)


TOKENS = {"input_ids": torch.zeros(2, 3, dtype=torch.int64)}


def loss():
    """Return a constant loss of a pass."""
    MODEL(**TOKENS)
    return torch.tensor(1.0)


MODEL = Model()
CASES = {
    "threshold text": lambda: jump_relu(X, "a"),
    "threshold NaN": lambda: jump_relu(X, math.nan),
    "threshold shape": lambda: jump_relu(X, torch.ones(4)),
    "thresholds of a layer": lambda: JumpReLU(2, shape=(7,))(X),
    "lam NaN": lambda: fusedmax(X, torch.full((3, 1), math.nan)),
    "variance, one row broadcast": lambda: ExplainedVariance(2).update(torch.rand(3, 2), torch.rand(1, 2)),
    "variance, width": lambda: ExplainedVariance(3).update(torch.rand(3, 2), torch.rand(3, 2)),
    "dead units of one example": lambda: DeadFraction(4).update(torch.rand(4)),
    "dead units, width": lambda: DeadFraction(1).update(torch.rand(3, 4)),
    "examples, list": lambda: Examples.of(a=[1, 2]),
    "examples, scalar": lambda: Examples.of(a=torch.tensor(1.0)),
    "examples, batches of 0": lambda: list(Examples.of(a=X).batches(0)),
    "examples, number": lambda: Examples.of(a=X)[0],
    "losses without gradient": lambda: UnbalancedOTDRO(1.0, 1.0, 0.1).perturb(lambda x: x.detach().sum(-1), X),
    "omega without gradient": lambda: RegularizedArgmax(lambda p: p.detach().square().sum(-1))(X),
    "gradient without gradient": lambda: hf.example_gradients(MODEL, [TOKENS], loss=lambda o, e: o.detach().sum()),
    "gradient of a text": lambda: hf.example_gradients(MODEL, ["a"]),
    "activations, list": lambda: hf.activations(MODEL, "embed", [1]),
    "activations, names": lambda: hf.activations(MODEL, "embed", {"ids": 1}),
    "activations, no model": lambda: hf.activations(None, "embed", TOKENS),
    "splice, no function": lambda: hf.spliced(MODEL, "embed", None).__enter__(),
    "recovered, text": lambda: hf.loss_recovered(MODEL, "embed", torch.zeros_like, lambda: "a"),
    "recovered, not used": lambda: hf.loss_recovered(MODEL, "embed", torch.zeros_like, loss),
    "recovered, shape": lambda: hf.loss_recovered(MODEL, "embed", lambda x: x[:, :2], lambda: MODEL(**TOKENS).sum()),
    "no logits": lambda: hf.fenchel_young_loss_func(Sparsemax())({}, torch.tensor([0])),
    "SAELens, linear": lambda: hf.save_for_sae_lens(torch.nn.Linear(2, 2), "x"),
    "weights of a list": lambda: hf.weighted_dataset([1, 2], CORESET),
    "trusting a text": lambda: runs.trusting("os").__enter__(),
    "status of a text": lambda: runs.read_status("x"),
    "seed text": lambda: random.seed_generator("a", torch.device("cpu")),
    "keys of floats": lambda: random.example_keys(0, torch.tensor([0.5]), 0),
    "decompose nothing": lambda: decompose(None),
    "subclasses of a number": lambda: concrete_subclasses(3),
    "heat map without axis": lambda: draw_attention(None, torch.ones(1, 1), ["a"], ["b"]),
    "counts -1": lambda: CountLogger(-1),
    "bases of three sides": lambda: BasesPlot(shape=(1, 2, 3)),
    "decode 1.5": lambda: WORDS.decode([1.5]),
    "decode a matrix": lambda: WORDS.decode(torch.ones(1, 2, dtype=torch.int64)),
    "token of a text": lambda: WORDS.lookup_token("a"),
    "tokens of a text": lambda: Vocabulary.from_tokens("ab"),
    "tokens that are numbers": lambda: Vocabulary.from_tokens([1, 2]),
    "no tokenizer": lambda: text.Vocabulary(None),
    "ragged floats": lambda: Ragged(torch.tensor([1, 2, 3]), torch.tensor([1.0, 2.0])),
    "ragged lengths of NaN": lambda: Ragged(torch.tensor([1, 2, 3]), torch.tensor([float("nan")])),
    "size of images": lambda: ImageFolderDataModule("x", size=(10**6, 10**6)),
    "before setup": lambda: DigitsDataModule().train_dataloader(),
    "metric 3": lambda: mean_metrics(3),
    "dtypes of decode": lambda: sparse_decode(torch.ones(3, 4).double(), torch.randn(4, 6)),
    "integers to encode": lambda: sparse_encode(torch.ones(3, 6).long(), torch.randn(4, 6)),
    "enumerate assignments": lambda: Assignment().enumerate(400),
    "enumerate trees": lambda: Tree().enumerate(121),
    "enumerate tags": lambda: Sequence(tags=2).enumerate(60),
    "enumerate half a position": lambda: Sequence(tags=2).enumerate(7),
    "enumerate a text": lambda: Xor().enumerate("a"),
    "potentials, list": lambda: Sequence(3, 2).maximize(torch.randn(2, 6), [[1.0]]),
    "nothing to choose": lambda: Or().maximize(torch.zeros(2, 0)),
    "a vocabulary of text": lambda: Seq2Seq(Sparsemax()).build({"source": WORDS, "target": "a b"}),
    "complex losses": lambda: Marginalize(Sparsemax())(X, lambda latent: latent.values.sum(-1).to(torch.complex64)),
    "attributes left out": lambda: MessageStructure(5, attributes=2).update(torch.arange(3), X, torch.zeros(3, 1).long()),
    "part beyond the examples": lambda: Examples.of(a=X).part(1, 9),
    "a shape of 1e12": lambda: LearnableEntmax((10**12,)),
    "no labels": lambda: hf.fenchel_young_loss_func(Sparsemax())({"logits": X}, None),
    "one loss for all": lambda: hf.risk_loss_func(CVaR(0.5), lambda x, y: x.sum())({"logits": X}, torch.tensor([0, 1, 2])),
    "trusting a name that does not exist": lambda: runs.trusting(["torch.nn.Liner"]).__enter__(),
    "trusting no path": lambda: runs.trusting(["Sparsemax"]).__enter__(),
    "a command in one text": lambda: build_cli("fit"),
    "a command of numbers": lambda: build_cli([1]),
    "no command": lambda: build_cli([]),
    "tokenizer without its package": lambda: Bleu("flores200").update(["a"], [["a"]]),
    "token of bytes": lambda: WORDS([b"a"]),
    "tokens of lists": lambda: WORDS.lookup_indices([[1]]),
    "no tokens": lambda: WORDS.lookup_tokens(None),
    "text of numbers": lambda: WORDS.join([1]),
    "text of a text": lambda: WORDS.join("ab"),
    "bases, width -1": lambda: SampleBases()(X, -1, torch.Generator()),
    "bases of a list": lambda: NoiseBases()([[1.0]], 2, torch.Generator()),
    "bases, generator": lambda: SampleBases()(X, 2, 3),
    "targets in a list": lambda: NormalLikelihood().check([0.0]),
    "complex counts": lambda: PoissonLikelihood().check(torch.ones(2).cfloat()),
    "sparse classes": lambda: LogisticLikelihood().check(torch.ones(2).to_sparse()),
    "sparse inputs": lambda: MLP([5, 2])(X.to_sparse()),
    "sparse features": lambda: BayesianRegression(LogisticLikelihood(), in_features=5)(X.to_sparse()),
    "sparse queries": lambda: attention(X.to_sparse(), X, X, Sparsemax()),
    "sparse ids": lambda: WordVectors(4, 2, 0)(torch.tensor([[1]]).to_sparse()),
    "sparse lengths": lambda: BODY.encode(torch.rand(1, 2, 4), ONE.to_sparse()),
    "sparse hidden vectors": lambda: LinearFenchelYoungLoss(Sparsemax(), 5, 4)(X.to_sparse(), torch.tensor([0, 1, 2])),
    "sparse scores": lambda: TopKMarginalize(k=2)(X.to_sparse(), lambda latent: latent.values.sum(-1)),
    "mask of tokens in a list": lambda: hf.SparseAttentionPooling(5).pool(X[None], [[1, 1, 0]]),
    "mask in a list": lambda: MultiheadAttention(5, 1)(X, X, X, attn_mask=[[0.0]]),
    "values of eight bits": lambda: MeanOverExamples().update(X.to(torch.float8_e4m3fn)),
    "source beyond the vocabulary": lambda: SourceEncoder(torch.nn.Embedding(3, 4), BODY)(torch.tensor([[3]]), ONE),
    "premise below zero": lambda: EntailmentPredictor(torch.nn.Embedding(3, 4), PAIRS)(-ID, ONE, ID, ONE),
    "noise of bytes": lambda: SymmetricNoise(0.5)(X, torch.tensor([0, 1, 2], dtype=torch.uint8), 3),
    "noise, label too large": lambda: FeatureDependentNoise(0.5)(X, torch.tensor([0, 1, 7]), 3),
    "noise, classes": lambda: SymmetricNoise(0.5)(X, torch.tensor([0, 1, 1]), "2"),
    "centres of another number": lambda: RadialBases(per_scale=2)(X, X),
    "points of no index": lambda: GaussianMixture([0.0], [1.0]).sample(0, None),
    "draws by 3": lambda: GaussianPosterior(torch.zeros(2), torch.eye(2)).sample(2, 3),
    "inputs in a list": lambda: UnbalancedOTDRO(1.0, 1.0, 0.1).perturb(lambda x: x.sum(-1), [1.0]),
    "trusting a number": lambda: runs.trusting([3]).__enter__(),
    "a covariance of another dtype": lambda: GaussianPosterior(torch.zeros(2), torch.eye(2).double()),
    "a precision that is a vector": lambda: GaussianPosterior.from_precision(torch.ones(2), torch.zeros(2)),
    "one width": lambda: MLP([4]),
    "no widths": lambda: MLP([]),
    "weights of integers": lambda: MultiheadAttention(4, 2, dtype=torch.int64),
    "complex weights": lambda: MultiheadAttention(4, 2, dtype=torch.complex64),
    "stage of images": lambda: DigitsDataModule().setup("train"),
    "stage of a table": lambda: SyntheticRegressionDataModule().setup("val"),
    "checkpoint 3": lambda: RobustClassifier.load_from_checkpoint(3),
    "penalty of integers": lambda: JumpReLU(2).penalty(X.long()),
    "memory of numbers": lambda: beam_search(print, {"a": 1}, {}, bos=0, eos=1, limits=ONE),
    "quantized limits": lambda: beam_search(print, {}, {}, bos=0, eos=1, limits=QUANTIZED[0]),
    "quantized surplus": lambda: log_plan_density(QUANTIZED, 0.1, "safe"),
    "quantized weights": lambda: tied_groups(QUANTIZED),
    "quantized labels": lambda: FenchelYoungLoss(Sparsemax())(torch.ones(5, 3), QUANTIZED[0]),
    "quantized logits": lambda: hf.risk_loss_func(CVaR(0.5))({"logits": QUANTIZED}, torch.arange(5)),
    "quantized loss": lambda: with_gradient_of(QUANTIZED, torch.ones(5, 5)),
    "quantized tokens": lambda: Ragged(QUANTIZED[0], torch.tensor([5])),
    "quantized covariance": lambda: gaussian_mean_posterior(X, covariance=QUANTIZED),
    "quantized predictor": lambda: NormalLikelihood().log_prob(QUANTIZED, QUANTIZED),
    "numbers in a list": lambda: RunningMean().update([1.0]),
    "weights of the layer NaN": lambda: find_weights(Model(), [math.nan]),
    "classes in a list": lambda: CLASSES.generate(torch.zeros(2, 4), [0, 1]),
    "styles in a list": lambda: CLASSES.generate([[0.0] * 4] * 2, torch.tensor([0, 1])),
    "weights of the source alone": lambda: EntropicTransport(dim=1).dual(X[:, :1], X[:, :1], torch.ones(3) / 3),
    "no weights in a tuple": lambda: EntropicTransport(dim=1).dual(X[:, :1], X[:, :1], ()),
    "lower case by a word": lambda: Vocabulary.build(["A b"], lowercase="False"),
    "tokens in lower case by a word": lambda: Vocabulary.from_tokens(["a"], lowercase="no"),
    "word vectors in a list": lambda: CLASSIFIER.use_vectors([[0.0] * 4] * 6),
    "known words in a list": lambda: CLASSIFIER.use_vectors(torch.zeros(6, 4), [True] * 6),
    "no pairs": lambda: CLASSIFIER.classify(None),
    "pairs of numbers": lambda: CLASSIFIER.classify([1, 2]),
    "pairs by name": lambda: CLASSIFIER.classify([{"premise": "a", "hypothesis": "b"}]),
    "no lines": lambda: WRITER.generate(None),
    "a class of posteriors": lambda: map_distance(GaussianPosterior, GaussianPosterior),
    "attributes that are NaN": lambda: positional_disentanglement(torch.full((3, 2), math.nan), torch.eye(3).long()),
    "inputs that are NaN": lambda: topographic_similarity(torch.full((3, 2), math.nan), torch.eye(3).long()),
    "a null byte in a path to write": lambda: CORESET.save("a\0b"),
    "an empty path to write": lambda: CORESET.save(""),
    "the path of a folder to write": lambda: CORESET.save(".."),
    "a null byte in a path to read": lambda: FileVectors("a\0b"),
    "a null byte in a path of a state": lambda: Uniform()(X, 1, state=SelectionState("a\0b")),
    "a null byte in a path of houses": lambda: CaliforniaHousingDataModule(path="a\0b.csv").setup(),
    "weights of a class": lambda: find_weights(torch.nn.Module, ["a"]),
    "no target": lambda: LogisticLikelihood().log_prob(X, None),
    "a number of examples": lambda: LogLikelihoodVectors(NormalLikelihood()).fit(3),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_refused(name):
    with pytest.raises(LitSparseError):
        CASES[name]()


@pytest.mark.parametrize("options", [{"dynamo": False}, {"foo": 1}, {"dynamic_shapes": "x"}])
def test_onnx_options_are_checked(tmp_path, options):
    pytest.importorskip("onnxscript")
    with pytest.raises(LitSparseError, match=next(iter(options))):
        export_onnx(Sparsemax(), (X,), tmp_path / "m.onnx", **options)


def test_message_names_the_edges():
    with pytest.raises(LitSparseError, match=r"but got \(\)"):
        ShortestPath((), 0, 1)


def test_file_in_place_of_a_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LitSparseError, match="file"):
        CORESET.save(tmp_path / "file" / "c.npz")


def test_lengths_far_from_one():
    unit = torch.nn.functional.normalize(X, dim=-1)
    assert torch.equal(directions(X), unit)
    for scale in (1e-30, 1e25):
        torch.testing.assert_close(directions(X * scale), unit)
    messages = torch.randint(0, 3, (3, 2))
    same = [topographic_similarity(X.double() * scale, messages) for scale in (1.0, 1e-200)]
    torch.testing.assert_close(*same, equal_nan=True)


@pytest.mark.parametrize("given", [{"b": {}}, {"a": {"c": {}}}, {"d": [{"e": {}}]}])
def test_unknown_empty_keys(given):
    with pytest.raises(LitSparseError, match=r"There is no option '[bce]'"):
        check_empty(given, {"a": {"init_args": {}}, "d": [{"x": 1}]})


def test_known_empty_keys():
    check_empty({"a": {"class_path": "m.A", "init_args": {}}, "k": {}}, {"a": {"class_path": "m.A"}, "k": None})
    check_empty({"a": {"class_path": "m.A", "init_args": {"x": {}}}}, {"a": {"class_path": "m.B", "init_args": {"y": 1}}})


def test_a_large_whole_number_is_a_number():
    points, potential = torch.zeros(2, 1), torch.zeros(2)
    whole, number = (dual_value(potential, potential, points, points, eps=eps) for eps in (10**25, 1e25))
    assert whole == number

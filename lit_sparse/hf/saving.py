"""Loads a saved model with the mappings of its attention."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import nn

from lit_sparse.errors import CheckpointError, ConfigurationError, full_name
from lit_sparse.hf.attachment import ATTRIBUTE, attach
from lit_sparse.hf.layer_mapping import CHILD, LayerMapping
from lit_sparse.hf.requirement import import_transformers
from lit_sparse.hf.saved_files import SavedFiles, unreadable
from lit_sparse.runs.checkpoint_files import restoring_error
from lit_sparse.runs.trust import trusting

__all__ = ["from_pretrained"]


def from_pretrained(model_class: Any, path: Any, *args: Any, trust: Collection[str] = (), **options: Any) -> nn.Module:
    """Return a saved model that :func:`lit_sparse.hf.sparsify` has changed, with its mappings and their parameters.

    ``model_class.from_pretrained(path)`` would load it with softmax, and log a warning of unexpected weights.

    The config names the classes of the mappings. They are checked before anything is built: classes of this package, public
    layers of torch, classes from modules that the program has imported, and those in ``trust`` are allowed. A config is
    refused if it names code, kernels, a quantization or files elsewhere, or has larger layers than the weights.

    Args:
        model_class: class of the model, or an ``AutoModel`` class.
        path: folder, or name on the Hugging Face hub.
        args: further arguments of ``model_class.from_pretrained``.
        trust: import paths of further classes that the config may name.
        options: further arguments of ``model_class.from_pretrained``.

    Returns:
        The model in eval mode.

    Raises:
        CheckpointError: if a file is missing, or the config does not describe mappings, names a class that is not allowed,
            or does not match the weights.
        ConfigurationError: if ``attn_implementation`` is given too.
        MissingExtraError: without transformers.
    """
    import_transformers()
    if not isinstance(model_class, type):
        raise ConfigurationError(f"Expected a transformers model class, such as AutoModel, but got {model_class!r}.")
    if "attn_implementation" in options:
        raise ConfigurationError(
            "Expected no `attn_implementation`, because the saved mappings are used. Call `model_class.from_pretrained` to"
            " choose another attention."
        )
    config = options.pop("config", None)
    shared = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token")
    files = SavedFiles(str(path), {name: options[name] for name in shared if name in options}, options.get("variant"))
    if config is None:
        config = files.config(trust_remote_code=bool(options.get("trust_remote_code")))
    described = getattr(config, ATTRIBUTE, None)
    source = f"the config of {str(path)!r}"
    if not isinstance(described, dict) or not described:
        raise CheckpointError(
            f"Expected {source} to describe attention mappings but got none. Load it by"
            f" {_name(model_class)}.from_pretrained, then call `lit_sparse.hf.sparsify(model, mapping)`."
        )
    concrete = _concrete(model_class, config)
    limits = files.limits()
    options = {"use_safetensors": True, **options}
    with trusting(trust):
        try:
            with limits.kept():
                kind, options = _with_mappings(concrete, described, source), {**options, "output_loading_info": True}
                model, info = kind.from_pretrained(path, *args, config=config, **options)
            if missing := [name for name in sorted(info["missing_keys"]) if CHILD in name.split(".")]:
                raise CheckpointError(f"Expected {missing[0]!r} among the weights of {str(path)!r} but it is missing.")
            model.__class__ = concrete
            # Loading starts on the meta device, where tensors that are not saved get no values: rebuild, and keep the loaded.
            loaded = {name: part.state_dict() for name, part in model.named_modules() if isinstance(part, LayerMapping)}
            attach(model, described, source)
            for name, state in loaded.items():
                part = model.get_submodule(name)
                part.load_state_dict(state)
                part.eval()
        except OSError as error:  # a file is not there
            raise unreadable(f"The weights of {str(path)!r}", error) from error
        except Exception as error:  # wrong values of a config raise anything
            raise restoring_error(source, error) from error
    return model  # type: ignore[no-any-return]


def _with_mappings(concrete: Any, described: dict[str, Any], source: str) -> Any:
    """Return a subclass whose layers have their mappings before the weights are loaded."""

    def construct(self: Any, config: Any, *args: Any, **options: Any) -> None:
        concrete.__init__(self, config, *args, **options)
        attach(self, described, source)

    return type(concrete.__name__, (concrete,), {"__init__": construct, "__module__": concrete.__module__})


def _concrete(model_class: Any, config: Any) -> Any:
    """Return the class that an ``AutoModel`` class stands for, or the class itself."""
    known = getattr(model_class, "_model_mapping", None)
    if known is None:
        if not isinstance(model_class, type) or not issubclass(model_class, import_transformers().PreTrainedModel):
            raise ConfigurationError(f"Expected a transformers model class, such as AutoModel, but got {_name(model_class)}.")
        return model_class
    if type(config) not in known:
        raise ConfigurationError(f"Expected a class that loads {full_name(config)} but got {_name(model_class)}.")
    found = known[type(config)]
    if isinstance(found, tuple | list):
        wanted = list(getattr(config, "architectures", None) or [])
        found = next((each for each in found if each.__name__ in wanted), found[0])
    return found


def _name(model_class: object) -> str:
    return getattr(model_class, "__name__", repr(model_class))

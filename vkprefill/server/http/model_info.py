"""What /v1/models and /props say, from the file's metadata and the engine."""

from __future__ import annotations

from vkprefill.drafting.settings import SpecDecodeConfig
from vkprefill.generation.sampling import SamplingConfig
from vkprefill.gguf.config import ModelConfig
from vkprefill.server.http.completions import Service
from vkprefill.server.protocol.requests import Defaults
from vkprefill.specprefill.self_scorer import scoring_layers
from vkprefill.specprefill.settings import AUTO, DRAFT, SELF


def model_object(service: Service) -> dict[str, object]:
    prompts, config = service.prompts, service.prompts.config
    stat = prompts.path.stat()
    meta = {
        "vocab_size": config.vocab_size,
        "n_vocab": config.vocab_size,
        "n_ctx_train": config.max_position_embeddings,
        "n_embd": config.hidden_size,
        "n_params": prompts.num_params,
        "size": stat.st_size,
        **{
            name: prompts.metadata[f"general.{name}"]
            for name in ("name", "architecture", "description")
            if f"general.{name}" in prompts.metadata
        },
    }
    if service.client.ready is not None:
        meta["n_ctx"] = service.client.ready.max_context
    return {
        "id": service.model_name,
        "object": "model",
        "created": int(stat.st_mtime),
        "owned_by": "vkprefill",
        "meta": meta,
    }


def props(service: Service, version: str) -> dict[str, object]:
    prompts, defaults, ready = service.prompts, service.defaults, service.client.ready
    sampling = defaults.sampling.resolve(prompts.metadata, thinking=False)
    info = tokenizer_info(service)
    return {
        "default_generation_settings": {
            "params": params(sampling, defaults.decode, defaults.max_tokens or defaults.answer_tokens),
            "n_ctx": ready.max_context if ready else None,
        },
        "total_slots": service.client.turns,
        "model_alias": service.model_name,
        "model_path": prompts.path.name,
        "chat_template": prompts.template_text,
        "modalities": {"vision": False, "audio": False},
        "bos_token": info["bos_token"] or "",
        "eos_token": info["eos_token"] or "",
        "build_info": f"vkprefill {version}",
        "device": ready.device if ready else None,
        "precision": ready.precision if ready else None,
        "specprefill": defaults.spec.as_dict() if defaults.spec else None,
        "specprefill_scorers": _scorers(defaults, prompts.config),
    }


def tokenizer_info(service: Service) -> dict[str, object]:
    """What vLLM's endpoint of this name says of the tokenizer; with it lm-eval needs none of its own."""
    tokenizer = service.prompts.tokenizer
    names = ("bos_token", "eos_token", "pad_token")
    ids = {name: getattr(tokenizer, f"{name}_id") for name in names}
    texts = {name: None if token_id is None else tokenizer.token_text(token_id) for name, token_id in ids.items()}
    return {**texts, "chat_template": service.prompts.template_text}


def _scorers(defaults: Defaults, config: ModelConfig) -> list[str]:
    """Who a request's `specprefill.scorer` may name."""
    own = [SELF] if scoring_layers(config) else []
    return [AUTO, DRAFT, *own] if defaults.has_draft else own


def params(sampling: SamplingConfig, decode: SpecDecodeConfig, max_tokens: int | None) -> dict[str, object]:
    """Under llama-server's names."""
    return {
        **vars(sampling),
        "seed": -1 if sampling.seed is None else sampling.seed,
        "n_predict": max_tokens or -1,
        "speculative.types": decode.type,
        **{f"speculative.{name}": getattr(decode, name) for name in ("n_max", "n_min", "p_min")},
    }

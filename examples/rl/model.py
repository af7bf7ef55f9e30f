"""A small GPT over the letters of a task, and how it is sampled from."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """One layer: attention to what came before, and a feed-forward network."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_in, self.norm_mid = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.gather = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same."""
        batch, length, width = x.shape
        parts = self.attend(self.norm_in(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.gather(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.norm_mid(x))


class GPT(nn.Module):
    """Tokens to the logits of the next one, and to a value where a value head is asked for."""

    def __init__(
        self, vocabulary: int, context: int, *, width: int = 64, layers: int = 2, heads: int = 4, value: bool = False
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.value = nn.Linear(width, 1) if value else None
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.05)
        nn.init.zeros_(self.head.weight)  # all letters are as likely, to begin with

    def features(self, tokens: Tensor) -> Tensor:
        """(batch, length) tokens to (batch, length, width)."""
        places = torch.arange(tokens.shape[1])
        found: Tensor = self.norm(self.blocks(self.tokens(tokens) + self.places(places)))
        return found

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) tokens to (batch, length, vocabulary) logits."""
        logits: Tensor = self.head(self.features(tokens))
        return logits


@torch.no_grad()
def sample(model: GPT, prompts: Tensor, most: int, end: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Respond to prompts of one length; return (batch, most) tokens, and the log-probabilities they were drawn with.

    After a response has ended there are ends, with log-probability 0; who reads it knows its length from its first end.
    """
    tokens, drawn = prompts, []
    ended = torch.zeros(len(prompts), dtype=torch.bool)
    for _ in range(most):
        logs = functional.log_softmax(model(tokens)[:, -1], dim=-1)
        new = torch.multinomial(logs.exp(), 1, generator=generator).squeeze(1)
        new = torch.where(ended, end, new)
        drawn.append(torch.where(ended, 0.0, logs.gather(1, new[:, None]).squeeze(1)))
        tokens = torch.cat([tokens, new[:, None]], dim=1)
        ended |= new == end
        if bool(ended.all()):
            break
    missing = most - len(drawn)
    responses = functional.pad(tokens[:, prompts.shape[1] :], (0, missing), value=end)
    return responses, functional.pad(torch.stack(drawn, dim=1), (0, missing))

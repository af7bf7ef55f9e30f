"""An optimizer for programs of tests that only need steps: torch's own import torch._dynamo, which takes as long as torch."""

SGD = """
class SGD(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    def add_param_group(self, group):
        self.param_groups.append({**self.defaults, **group})

    def zero_grad(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(parameter.grad, alpha=group["lr"])
"""
"""Text that defines SGD where torch is imported. Its steps call torch's hooks, as those of any optimizer."""

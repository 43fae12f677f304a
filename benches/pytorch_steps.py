#!/usr/bin/env python3
"""A step of the same models in PyTorch, to stand beside `backends`: median milliseconds, CSV on standard output.

    python3 benches/pytorch_steps.py --model resnet8,resnet20,bilstm --batch 32 --steps 20 [--device cuda]
"""

import argparse
import csv
import platform
import statistics
import sys
import time

import torch
from torch import nn


class Block(nn.Module):
    """Two 3x3 convolutions with BatchNorm; a 1x1 convolution without one where the shape changes."""

    def __init__(self, inputs, outputs, stride, projection_norm):
        super().__init__()
        self.a = conv_norm(inputs, outputs, stride)
        self.b = conv_norm(outputs, outputs, 1)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            layers = [nn.Conv2d(inputs, outputs, 1, stride, bias=False)]
            self.shortcut = nn.Sequential(*layers, *([nn.BatchNorm2d(outputs)] if projection_norm else []))

    def forward(self, x):
        return torch.relu(self.b(torch.relu(self.a(x))) + self.shortcut(x))


def conv_norm(inputs, outputs, stride):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs))


def resnet(width, blocks, projection_norm):
    layers, channels = [conv_norm(3, width, 1), nn.ReLU()], width
    for stage, count in enumerate(blocks):
        for index in range(count):
            stride = 2 if stage and not index else 1
            layers.append(Block(channels, width << stage, stride, projection_norm))
            channels = width << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def vgg(counts, width=64):
    layers, channels = [], 3
    for count, outputs in zip(counts, [width, 2 * width, 4 * width, 8 * width, 8 * width]):
        for _ in range(count):
            layers += [conv_norm(channels, outputs, 1), nn.ReLU()]
            channels = outputs
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, 10))


class BiLstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20002, 64)
        self.lstm = nn.LSTM(64, 96, batch_first=True, bidirectional=True)
        self.head = nn.Linear(192, 4)

    def forward(self, tokens):
        states, _ = self.lstm(self.embedding(tokens))
        return self.head(states.mean(1))  # no padding in the batch


MODELS = {
    "resnet8": lambda: resnet(16, [1, 1, 1], False),
    "resnet20": lambda: resnet(16, [3, 3, 3], False),
    "resnet18": lambda: resnet(64, [2, 2, 2, 2], True),
    "vgg11-slim": lambda: vgg([1, 1, 2, 2, 2], 16),
    "vgg16": lambda: vgg([2, 2, 3, 3, 3]),
    "bilstm": BiLstm,
}


def measure(name, batch, steps, device):
    model = MODELS[name]().to(device)
    text = name == "bilstm"
    if text:
        inputs = (torch.arange(batch * 48) * 7919 % 20000 + 2).reshape(batch, 48)
        optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    else:
        inputs = torch.randn(batch, 3, 32, 32)
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    inputs, labels = inputs.to(device), (torch.arange(batch) % (4 if text else 10)).to(device)
    times = []
    for step in range(steps + 3):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        loss.item()  # waits for a GPU
        if step >= 3:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet8,bilstm")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2, help="of the CPU; 0 for PyTorch's own choice")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    out = csv.writer(sys.stdout)
    out.writerow(["backend", "device", "model", "batch", "steps", "ms_per_step", "versions"])
    for name in arguments.model.split(","):
        if name not in MODELS:
            parser.error(f"--model {name}: one of {', '.join(MODELS)}")
        seconds = measure(name, arguments.batch, arguments.steps, arguments.device)
        device = torch.cuda.get_device_name() if arguments.device == "cuda" else f"cpu, {torch.get_num_threads()} threads"
        versions = f"PyTorch {torch.__version__}, Python {platform.python_version()}"
        row = ["pytorch", device, name, arguments.batch, arguments.steps, f"{seconds * 1e3:.3f}", versions]
        out.writerow(row)
        sys.stdout.flush()


if __name__ == "__main__":
    main()

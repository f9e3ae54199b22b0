"""The equations of the lab's other optimizers, written out in float64: generators of a parameter after each step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ademamix.reference import f_alpha, f_beta3

EPS = 1e-8


def adamw_scheduled_beta1(theta, grads, rates, decay, *, betas, beta1_start, T) -> Iterator[np.ndarray]:
    m = nu = 0.0
    product = 1.0
    for t, (g, lr) in enumerate(zip(grads, rates, strict=True), start=1):
        beta1 = f_beta3(t, betas[0], beta1_start, T)
        m = beta1 * m + (1 - beta1) * g
        nu = betas[1] * nu + (1 - betas[1]) * g**2
        product *= beta1
        m_hat, nu_hat = m / (1 - product), nu / (1 - betas[1] ** t)
        theta = theta - lr * (m_hat / (np.sqrt(nu_hat) + EPS) + decay * theta)
        yield theta


def convex_mix(theta, grads, rates, decay, *, betas, alpha, T) -> Iterator[np.ndarray]:
    beta1, beta2, beta3 = betas
    m1 = m2 = nu = 0.0
    for t, (g, lr) in enumerate(zip(grads, rates, strict=True), start=1):
        a, b3 = f_alpha(t, alpha, T), f_beta3(t, beta3, beta1, T)
        m1 = beta1 * m1 + (1 - beta1) * g
        m2 = b3 * m2 + (1 - b3) * g
        nu = beta2 * nu + (1 - beta2) * g**2
        m1_hat, nu_hat = m1 / (1 - beta1**t), nu / (1 - beta2**t)
        theta = theta - lr * (((1 - a) * m1_hat + a * m2) / (np.sqrt(nu_hat) + EPS) + decay * theta)
        yield theta


def ad3emamix(theta, grads, rates, decay, *, betas, alpha, T) -> Iterator[np.ndarray]:
    beta1, beta2, beta3, beta4 = betas
    m1 = m2 = m3 = nu = 0.0
    for t, (g, lr) in enumerate(zip(grads, rates, strict=True), start=1):
        a, b3, b4 = f_alpha(t, alpha, T), f_beta3(t, beta3, beta1, T), f_beta3(t, beta4, beta1, T)
        m1 = beta1 * m1 + (1 - beta1) * g
        m2 = b3 * m2 + (1 - b3) * g
        m3 = b4 * m3 + (1 - b4) * g
        nu = beta2 * nu + (1 - beta2) * g**2
        m1_hat, nu_hat = m1 / (1 - beta1**t), nu / (1 - beta2**t)
        theta = theta - lr * ((m1_hat + a * (m2 + m3)) / (np.sqrt(nu_hat) + EPS) + decay * theta)
        yield theta


def log_time_ademamix(theta, grads, rates, decay, *, betas, alpha, delta, kappa, tau) -> Iterator[np.ndarray]:
    beta1, beta2 = betas
    m1 = m2 = nu = 0.0
    for t, (g, lr) in enumerate(zip(grads, rates, strict=True), start=1):
        b3, a, wd = 1 - delta / (delta + t), alpha * (1 + t) ** (1 - kappa), decay * tau / (tau + t)
        m1 = beta1 * m1 + (1 - beta1) * g
        m2 = b3 * m2 + (1 - b3) * g
        nu = beta2 * nu + (1 - beta2) * g**2
        m1_hat, nu_hat = m1 / (1 - beta1**t), nu / (1 - beta2**t)
        theta = theta - lr * ((m1_hat + a * m2) / (np.sqrt(nu_hat) + EPS) + wd * theta)
        yield theta


def simplified_ademamix(theta, grads, rates, decay, *, betas, alpha, beta1_start, T) -> Iterator[np.ndarray]:
    m = nu = 0.0
    for t, (g, lr) in enumerate(zip(grads, rates, strict=True), start=1):
        m = f_beta3(t, betas[0], beta1_start, T) * m + g
        nu = betas[1] * nu + (1 - betas[1]) * g**2
        nu_hat = nu / (1 - betas[1] ** t)
        theta = theta - lr * ((m + alpha * g) / (np.sqrt(nu_hat) + EPS) + decay * theta)
        yield theta


def aggmo(theta, grads, rates, decay, *, betas) -> Iterator[np.ndarray]:
    m = [0.0] * len(betas)
    for g, lr in zip(grads, rates, strict=True):
        m = [beta * m_i + g for beta, m_i in zip(betas, m, strict=True)]
        theta = theta - lr / len(betas) * sum(m) - lr * decay * theta
        yield theta


def admeta_s(theta, grads, rates, decay, *, betas) -> Iterator[np.ndarray]:
    beta1, beta2 = betas
    mu = 25 - 10 * (beta1 + 1 / beta1)
    kappa = 10 / beta1 - 9
    m1 = m2 = 0.0
    for g, lr in zip(grads, rates, strict=True):
        m1 = beta1 * m1 + g
        h = kappa * g + mu * m1
        m2 = beta2 * m2 + (1 - beta2) * h
        theta = theta - lr * m2 - lr * decay * theta
        yield theta


def lion(theta, grads, rates, decay, *, alpha, beta) -> Iterator[np.ndarray]:
    m = 0.0
    for g, lr in zip(grads, rates, strict=True):
        theta = theta - lr * (np.sign(alpha * m + (1 - alpha) * g) + decay * theta)
        m = beta * m + (1 - beta) * g
        yield theta

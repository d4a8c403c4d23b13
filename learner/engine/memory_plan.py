"""Memory need of a learner's rank, from the shape of a model and its training settings. Pure.

Formulas count the tensors that autograd saves, as Korthikanti et al. (arXiv:2205.05198) do, for the layers of
transformers as they are: no fused kernels, attention by torch's scaled_dot_product_attention. Tests compare them with
torch's own accounting of real models.
"""

from dataclasses import dataclass, replace

FLOAT32 = 4
OVERHEAD_BYTES = 2 * 2**30
"""CUDA's context, libraries' workspaces, communication buffers, unusable fragments on a GPU. An assumption."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A causal language model with attention in every layer."""

    num_params: int
    """Tied weights once, all experts."""
    num_expert_params: int
    """Parameters of routed experts, in all layers."""
    block_params: int
    """Parameters of the largest decoder layer."""
    group_params: int
    """Parameters of the largest part that FSDP2 gathers at once: a layer, or an embedding that is not tied."""
    root_params: int
    """Parameters outside such parts, gathered for the whole step: the last norm, and tied embeddings."""
    adapter_width: int
    """Input plus output features of all modules that get LoRA adapters: parameters for each unit of rank."""
    num_embedding_params: int
    """Parameters of the input embedding, which is a lookup; 0 if it is also the output."""
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    """Width of the MLP that every token passes; 0 where there are only routed experts."""
    vocabulary: int
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    has_qk_norm: bool = False

    @property
    def num_active_params(self) -> int:
        """Parameters that multiply a token: without looked-up embeddings, and without experts it is not routed to."""
        active = self.num_params - self.num_embedding_params
        if self.experts:
            active -= self.num_expert_params * (self.experts - self.experts_per_token) // self.experts
        return active


@dataclass(frozen=True, slots=True)
class TrainingShape:
    """Training settings of a model. Names of verl's settings where it has one."""

    num_ranks: int
    tokens: int
    """``ppo_max_token_len_per_gpu``."""
    row_tokens: int
    """The longest sequence."""
    shard_ranks: int = 0
    """``fsdp_size``: ranks that share one copy of the model; 0: all."""
    ulysses_ranks: int = 1
    use_remove_padding: bool = True
    checkpointing: bool = True
    offload_policy: bool = False
    """Parameters, gradients and optimiser state stay on the host."""
    param_bytes: int = FLOAT32
    """A master parameter and its gradient."""
    compute_bytes: int = 2
    logits_chunk: int = 1024
    """Tokens whose logits are in float32 at a time, see `token_log_probs`."""
    optimizer_bytes: int = 8
    """State for each trained parameter: AdamW 8, with 8-bit state 2."""
    has_foreach_optimizer: bool = True
    """The optimiser updates all parameters at once, with a temporary copy: torch's choice on a GPU."""
    lora_rank: int = 0
    defers_gradient_sync: bool = False
    """``use_no_sync_for_gradient_accumulation``: whole gradients are kept until the last micro-batch."""
    entropy_bonus: bool = False
    has_critic: bool = False
    has_reference: bool = False
    """A frozen copy is computed too: time, and host memory."""
    overhead_bytes: int = OVERHEAD_BYTES

    @property
    def shards(self) -> int:
        """Parts that a parameter is cut into."""
        return min(self.shard_ranks or self.num_ranks, self.num_ranks)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of one rank."""

    parameters: int
    gradients: int
    optimizer_state: int
    working_copies: int
    """FSDP2's gathered parts and their gradients, in the dtype they are computed in."""
    saved_activations: int
    """Bytes that the layers keep from the forward pass to the backward pass, at the token budget."""
    layer_activations: int
    """One layer's, backwards: what checkpointing computes again, and gradients of activations."""
    logits: int
    """Two copies, and chunks in float32; gone before the layers' backward pass begins."""
    backward: int
    """The largest sum of these five at any moment: they do not all exist at once."""
    optimizer_temporaries: int
    """While weights are updated; activations are gone by then."""
    overhead: int
    engine_share: int = 0
    """Bytes that an inference engine takes of the same GPU."""

    @property
    def states(self) -> int:
        """Bytes that stay from step to step, and the gradients."""
        return self.parameters + self.gradients + self.optimizer_state

    @property
    def peak(self) -> int:
        """The largest sum at any moment: in the backward pass, or while weights are updated."""
        return self.states + max(self.backward, self.optimizer_temporaries) + self.overhead + self.engine_share


def plan_memory(model: ModelShape, how: TrainingShape, engine_share: int = 0) -> MemoryPlan:
    """Plan the bytes of the rank that needs most; ``engine_share`` is in bytes."""
    model = _pad_experts(model, how)
    trained = model.adapter_width * how.lora_rank if how.lora_rank else model.num_params
    frozen = model.num_params if how.lora_rank else 0
    whole = model.num_params if how.has_critic else 0  # the critic has no adapters
    on_gpu = 0 if how.offload_policy else 1
    gradients = _shard(trained + whole, how) * how.param_bytes * on_gpu
    if how.defers_gradient_sync:
        gradients += max(trained, whole) * FLOAT32  # one engine trains at a time
    working, saved = _working_copies(model, how), _saved_activations(model, how)
    layer, logits = _layer_activations(model, how), _logits(model, how)
    width = how.compute_bytes
    logits_gradient = how.tokens * model.vocabulary * width
    foreach = how.has_foreach_optimizer and on_gpu
    return MemoryPlan(
        parameters=_shard(trained + frozen + whole, how) * how.param_bytes * on_gpu,
        gradients=gradients,
        optimizer_state=_shard(trained + whole, how) * how.optimizer_bytes * on_gpu,
        working_copies=working,
        saved_activations=saved,
        layer_activations=layer,
        logits=logits,
        backward=saved + max(model.root_params * width + logits, working + max(layer, logits_gradient)),
        optimizer_temporaries=_shard(max(trained, whole), how) * how.param_bytes if foreach else 0,
        overhead=how.overhead_bytes,
        engine_share=engine_share,
    )


def host_bytes(model: ModelShape, how: TrainingShape) -> int:
    """Count host memory for each rank: offloaded parts, and the reference model, which verl keeps there on a GPU."""
    adapters = model.adapter_width * how.lora_rank
    trained = adapters or model.num_params
    shard = _shard(model.num_params, how) * how.param_bytes if how.has_reference else 0
    if how.offload_policy:
        shard += _shard(trained, how) * (2 * how.param_bytes + how.optimizer_bytes)
        shard += _shard(model.num_params, how) * how.param_bytes if adapters else 0
    return shard


def _pad_experts(model: ModelShape, how: TrainingShape) -> ModelShape:
    """Pad the experts to the shards: FSDP2 cuts their dimension, so 4 experts on 8 ranks take the memory of 8."""
    if not model.experts:
        return model
    padded = -(-model.experts // how.shards) * how.shards
    more = model.num_expert_params * (padded - model.experts) // model.experts
    block = model.block_params + more // model.layers
    return replace(
        model,
        num_params=model.num_params + more,
        block_params=block,
        group_params=max(model.group_params, block),
    )


def _shard(params: int, how: TrainingShape) -> int:
    return -(-params // how.shards)


def _working_copies(model: ModelShape, how: TrainingShape) -> int:
    """Count FSDP2's working copies: a part computes while the next is gathered and gradients are reduced.

    Source: torch.distributed.fsdp.fully_shard. For a part: its weights, those of the next one, its gradient, and that
    gradient in float32 to be reduced. The root's weights stay gathered, and its gradient comes in parts until the end,
    where it is reduced after the last layer's.
    """
    width, adapters = how.compute_bytes, how.lora_rank > 0
    trained = model.adapter_width * how.lora_rank // model.layers if adapters else model.group_params
    in_layers = 2 * model.group_params * width + trained * (width + FLOAT32)
    if adapters:
        return model.root_params * width + in_layers
    at_root = (model.root_params + model.block_params) * FLOAT32
    return 2 * model.root_params * width + max(in_layers, at_root)


def _saved_activations(model: ModelShape, how: TrainingShape) -> int:
    """Count the activations of all layers and the last norm; checkpointed layers keep their input alone."""
    width = how.compute_bytes
    per_layer = model.hidden * width * how.tokens if how.checkpointing else _layer_bytes(model, how)
    last_norm = (_norm_bytes(model.hidden, width) + 2 * model.head_dim * width) * how.tokens
    mask = 0 if how.use_remove_padding else how.tokens * how.row_tokens
    return model.layers * per_layer + last_norm + mask


def _layer_activations(model: ModelShape, how: TrainingShape) -> int:
    """Count the widest product's gradients, and the layer again if it was not kept."""
    widest = max(model.intermediate, model.experts_per_token * model.expert_intermediate)
    gradients = how.tokens * how.compute_bytes * (2 * widest + 2 * model.hidden)
    return gradients + (_layer_bytes(model, how) if how.checkpointing else 0)


def _layer_bytes(model: ModelShape, how: TrainingShape) -> int:
    """Count the bytes that autograd saves of a layer.

    Each norm: its input in float32, the normed input, the output, a scale. Attention: query, key, value, output, and a
    float32 per head. MLP: gate, its activation, up, their product. A routed token also has a copy of its own for
    each expert. Packed rows are attended to one by one, and joined in one more copy of the output (`packed_attention`).
    Padded ones have a mask in the dtype of the computation, and with a mask keys and values are repeated for each head,
    unless there is one of them.
    """
    width = how.compute_bytes
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    if how.use_remove_padding:
        attention = 3 * queries + 2 * keys
    else:
        attention = 2 * queries + 2 * (keys if model.kv_heads == 1 else queries) + how.row_tokens
    per_token = 2 * _norm_bytes(model.hidden, width) + width * attention + FLOAT32 * model.heads
    if model.has_qk_norm:
        upcast = FLOAT32 if width < FLOAT32 else 0
        per_token += (width + (upcast or width)) * (queries + keys) + FLOAT32 * (model.heads + model.kv_heads)
    per_token += 4 * model.intermediate * width
    if model.experts:
        copies = width * (2 * model.hidden + 4 * model.expert_intermediate + 1) + 33  # 33: indices and masks
        per_token += model.experts_per_token * copies + FLOAT32 * model.experts
    return how.tokens * per_token


def _norm_bytes(features: int, width: int) -> int:
    """Count the bytes per token of an RMS norm: input (in float32), normed, output, and the scale."""
    return features * (FLOAT32 + 2 * width) + FLOAT32


def _logits(model: ModelShape, how: TrainingShape) -> int:
    """Count logits and their scaled copy, later logits and their gradient; float32 in chunks (`token_log_probs`)."""
    whole = how.tokens * model.vocabulary
    chunk = 2 * min(how.tokens, how.logits_chunk) * model.vocabulary * FLOAT32
    entropy = 2 * whole * FLOAT32 if how.entropy_bonus else 0  # the chunks of verl's entropy stay for its gradient
    return 2 * whole * how.compute_bytes + chunk + entropy

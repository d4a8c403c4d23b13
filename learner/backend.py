"""The choice of verl as trainer and for estimators; another trainer is chosen here."""

import logging

from lightningbus.learner.batching.batch import BatchBuilder
from lightningbus.learner.demonstration_files import read_demonstrations
from lightningbus.learner.preference_files import read_preferences
from lightningbus.learner.settings.learner import LearnerSettings
from lightningbus.learner.trainer import Trainer
from lightningbus.learner.training.estimators import make_estimator
from lightningbus.learner.training.verl_trainer import VerlTrainer
from lightningbus.learner.transitions.tokenizer import find_vocabulary_size, load_detokenizer

log = logging.getLogger(__name__)


def make_trainer(settings: LearnerSettings) -> Trainer:
    """Make the trainer of the settings; raises ValueError with a sentence."""
    return VerlTrainer(settings)


def make_builder(settings: LearnerSettings) -> BatchBuilder:
    """Make the builder of the batches that the trainer trains on; raises ValueError with a sentence."""
    model, estimate = settings.model_path, make_estimator(settings.algorithm)
    demonstrations = None
    if settings.supervised is not None:
        demonstrations = read_demonstrations(settings)
        if demonstrations.num_left_out:
            log.warning("%d demonstrations have no answer that fits seq_len", demonstrations.num_left_out)
    preferences = read_preferences(settings) if settings.preferences is not None else None
    vocabulary_size = find_vocabulary_size(model)
    return BatchBuilder(settings, estimate, load_detokenizer(model), vocabulary_size, demonstrations, preferences)


def record_reference(trainer: Trainer, builder: BatchBuilder) -> None:
    """Let a trainer with the weights of the start score the pairs to train on, where there are any."""
    if builder.preferences is not None:
        log.info("scoring the answers of %d pairs with the model at the start", len(builder.preferences))
        trainer.record_reference(builder.preferences.sequences)

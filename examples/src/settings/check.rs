//! Limits on values that no run can exceed.

use anyhow::{Result, bail};

use briquette::zoo::wrapper::{dion::DionConfig, rank_momentum::RankMomentumConfig};

use super::{BalanceSpec, OptimizerKind, Settings};
use crate::spec::{ClockSpec, Toggle};

/// Maximum ranks of a run: each has a connection, or a queue, to every other one.
const RANKS: usize = 4096;
/// Maximum threads of a rank: more than the usable cores of any machine.
const THREADS: usize = 256;

impl Settings {
    pub(super) fn check(&self) -> Result<()> {
        let counts = [("ranks", Some(self.ranks)), ("batch", Some(self.batch)), ("epochs", Some(self.epochs))];
        let limits = [("train-limit", self.train_limit), ("test-limit", self.test_limit)];
        let steps = [("steps", self.steps), ("eval-every", Some(self.eval_every))];
        let steps = steps.map(|(flag, value)| (flag, value.map(|v| v as usize)));
        if let Some((flag, _)) = counts.into_iter().chain(limits).chain(steps).find(|(_, value)| *value == Some(0)) {
            bail!("--{flag} must be at least 1, got 0");
        }
        for (flag, value, limit) in
            [("ranks", self.ranks, RANKS), ("threads", self.config.exchange.threads.unwrap_or(1), THREADS)]
        {
            if value > limit {
                bail!("--{flag} must be at most {limit}, got {value}");
            }
        }
        // Parameters are f32: a value that is not finite as f32 is refused.
        let is_number = |value: f64| (value as f32).is_finite();
        if !(is_number(self.lr) && self.lr > 0.0) {
            bail!("--lr must be a positive number up to 3.4e38, got {}", self.lr);
        }
        if let Some(momentum) = self.momentum.filter(|momentum| !(0.0..1.0).contains(momentum)) {
            bail!("--momentum must be in [0, 1), got {momentum}");
        }
        if !(is_number(self.weight_decay) && self.weight_decay >= 0.0) {
            bail!("--weight-decay must be at least 0 and at most 3.4e38, got {}", self.weight_decay);
        }
        if self.corrects_momentum() && self.optimizer != OptimizerKind::Sgd {
            let other = self.optimizer.name();
            let what = match self.config.exchange.feedback.is::<RankMomentumConfig>() {
                true => "--feedback rank-momentum",
                false => "--momentum-correction on",
            };
            bail!("{what} is for --optimizer sgd: {other} would take velocities for gradients");
        }
        if self.config.exchange.feedback.is::<DionConfig>() && self.optimizer != OptimizerKind::Muon {
            bail!("--feedback dion keeps the momentum of --optimizer muon: use both, not {}", self.optimizer.name());
        }
        if self.one_bit_adam().is_some() != (self.optimizer == OptimizerKind::OneBitAdam) {
            bail!(
                "--feedback one-bit-adam:WARM_UP exchanges what --optimizer one-bit-adam steps with: use both, or neither, not {} and {}",
                self.config.exchange.feedback,
                self.optimizer.name()
            );
        }
        if self.average_from.is_some() && (self.server.is_some() || !self.config.strategy.is_every_step()) {
            bail!(
                "--average-from takes the parameters that all ranks have after a step: use --strategy every-step, and no --server"
            );
        }
        if self.non_iid.is_some_and(|alpha| !(1e-6..=1e6).contains(&alpha)) {
            bail!("--non-iid must be between 1e-6 and 1e6, got {}", self.non_iid.unwrap_or_default());
        }
        if self.balance == Some(BalanceSpec::Auto) && (self.server.is_some() || self.non_iid.is_some()) {
            bail!(
                "--balance auto deals the samples of a step to all ranks: omit it, as a --server's workers take no common steps, and under \
                 --non-iid each rank has its own samples"
            );
        }
        if self.resize.is_some() && self.server.is_some() {
            bail!("--resize is for elastic worlds, and a world with a --server is not elastic: omit it");
        }
        if self.compress_seconds.is_some() && self.clock == ClockSpec::Wall {
            bail!("--compress-seconds would be ignored under --clock wall, which measures: omit it");
        }
        let (strategy, controller) = (&self.config.strategy, &self.config.exchange.controller);
        let by_seconds = [
            controller.get().reads_seconds().then(|| ("controller", controller.name().to_owned())),
            strategy.get().reads_seconds().then(|| ("strategy", strategy.to_string())),
        ];
        if let Some((part, name)) =
            by_seconds.into_iter().flatten().next().filter(|_| self.record_frames == Some(Toggle::On))
        {
            bail!(
                "--record-frames on: --{part} {name} decides by seconds, so on another network the run could send something else than what is \
                 recorded: omit --record-frames and run it on each network, or choose a {part} that reads no seconds"
            );
        }
        self.check_budget()?;
        self.network()?;
        crate::backend::backends(self)?;
        if self.data.is_some() && self.dataset == "generated" {
            bail!("--data would be ignored under --dataset generated: omit it");
        }
        if self.server.is_some() { self.check_server() } else { self.check_exchange() }
    }
}

//! Settings of a server's run, from the flags.

use anyhow::{Context, Result, bail, ensure};
use briquette::ServerTraining;
use briquette::core::config::{Exchange, combine};

use super::{AugmentSpec, Settings};

impl Settings {
    /// Returns the settings of the server and its workers, if there are any.
    ///
    /// # Errors
    /// Names settings that would be ignored.
    pub fn server_training(&self) -> Result<Option<ServerTraining>> {
        let Some(policy) = &self.server else { return Ok(None) };
        let server = ServerTraining::new(policy.clone());
        combine::check(&self.config, &combine::Run::default().with_server(policy)).context("--server")?;
        ensure!(self.warm_up.is_none(), "--controller would be ignored under --server: omit it");
        let Exchange { reducer, feedback, .. } = &self.config.exchange;
        Ok(Some(match reducer.get().compressor() {
            Some(compressor) => server.with_compressor(compressor, feedback.get().requirement().keeps_state()),
            None => server,
        }))
    }

    /// Returns the number of batch gradients in an update of the model.
    pub fn gradients_of_an_update(&self) -> u64 {
        let workers = self.ranks.saturating_sub(1);
        self.server.as_ref().map_or(1, |policy| policy.get().batches_of_an_update(workers))
    }

    pub(super) fn check_server(&self) -> Result<()> {
        let ignored = [
            ("rebroadcast", self.rebroadcast.is_some()),
            ("record-gradient", self.record_gradient.is_some()),
            ("record-frames", self.record_frames.is_some()),
            ("compress-seconds", self.compress_seconds.is_some()),
            ("metrics-addr", self.metrics_addr.is_some()),
        ];
        if let Some((flag, _)) = ignored.into_iter().find(|(_, given)| *given) {
            bail!("--{flag} would be ignored under --server: omit it");
        }
        let policy = self.server.as_ref().context("checked where it is given")?;
        let draws = self.augment.is_some_and(|augment| augment != AugmentSpec::None);
        if policy.get().requires_all_data() && draws {
            bail!(
                "--server {policy} compares gradients of the same samples, and --augment makes others of them at every pass: use --augment none"
            );
        }
        policy.get().build(self.ranks - 1).context("--server")?;
        self.server_training().map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use briquette::core::config::Feedback;

    use super::*;
    use crate::settings::Options;

    fn of(policy: &str) -> Options {
        let server = Some(policy.parse().expect("a policy"));
        Options { server, ranks: Some(4), ..Options::default() }
    }

    fn refused(options: Options, words: &[&str]) {
        let error = format!("{:#}", options.resolve().expect_err("refused"));
        assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
    }

    #[test]
    fn a_memory_is_there_with_a_compressor_where_the_policy_allows_one() {
        briquette::zoo::install();
        let compressor = Some("topk:10x".parse().expect("a compressor"));
        let feedback = |options: Options| options.resolve().expect("valid").config.exchange.feedback;
        assert_eq!(feedback(of("async-sgd")), Feedback::none());
        assert_eq!(feedback(Options { compressor: compressor.clone(), ..of("async-sgd") }), Feedback::error());
        assert_eq!(feedback(Options { compressor: compressor.clone(), ..of("synthesis:8") }), Feedback::none());
        let both = Options { compressor, feedback: Some(Feedback::error()), ..of("synthesis:8") };
        refused(both, &["synthesis", "no memory", "feedback none"]);
    }

    #[test]
    fn what_would_be_ignored_or_cannot_be_is_named() {
        briquette::zoo::install();
        refused(
            Options { feedback: Some(Feedback::none()), ..of("async-sgd") },
            &["--feedback would be ignored", "dense"],
        );
        let data = Options { data: Some("there".into()), dataset: Some("generated".into()), ..of("async-sgd") };
        refused(data, &["--data would be ignored"]);
        refused(Options { augment: Some(AugmentSpec::Flip), ..of("synthesis:8") }, &["synthesis", "--augment"]);
        assert!(Options { augment: Some(AugmentSpec::Flip), ..of("async-sgd") }.resolve().is_ok());
        refused(of("backup:4,spare=1"), &["--server", "4 + 1 workers"]);
        refused(
            Options { rebroadcast: Some(7), ..of("async-sgd") },
            &["--rebroadcast would be ignored under --server"],
        );
    }
}

//! Compression of uplink and downlink, with error feedback at ranks and at servers: majority vote, DoubleSqueeze,
//! NEOLITHIC.
//!
//! **Why, and when not.** In an all-gather of compressed messages, each of `W` ranks receives `W − 1` messages. Here every rank serves a
//! share of the vector: it receives one message for it from each rank, combines them, compresses the result again, and sends that to all. A
//! rank moves about two compressed vectors, whatever the number of ranks. The second compression also loses information; a server adds this
//! residual to its next mean. Not for few ranks (with two, a gather moves less), and not for an aggregator that rates whole contributions,
//! because a server sees only its share.
//!
//! **Method.** Published under several names:
//!
//! | source | settings |
//! |---|---|
//! | signSGD with majority vote: `V = sign(Σᵢ sign(gᵢ))` | `two-way:plain-sign,down=plain-sign` |
//! | Signum with majority vote: `vᵢ ← βvᵢ + (1−β)gᵢ`, `V = sign(Σᵢ sign(vᵢ))` | the same, feedback [`rank-momentum:0.9`](crate::wrapper::rank_momentum::RankMomentum) |
//! | DoubleSqueeze: `δᵢ ← gᵢ + eᵢ − C(gᵢ + eᵢ)`; server `v = mean C(…) + e`, sends `C(v)`, `e ← v − C(v)` | `two-way:sign,down=sign,per-slot=true`, feedback `error` |
//! | NEOLITHIC: `R` messages up, `R` messages down, each of the remainder of the previous ones | `rounds=R`, and `R` times the batch |
//!
//! For one range, let `cᵢ` be the messages that a server receives and `m` their aggregate (the mean, a median). Then `x = m + e`,
//! `Ω = C_down(x)`, `e ← x − Ω`, and the average is `Ω`. Ties of a vote are decided by the compressor's `sign(0)`:
//! [`plain-sign:random`](briquette_core::compress::plain_sign::PlainSign) draws them, and also draws the votes of a rank without samples, which are all ties.
//!
//! **On the wire.** To each server: per part and round a length (4 bytes) and a [message](briquette_core::Message) (an all-to-all). The servers
//! return the same (an all-gather), after `⌈W/8⌉` bytes that name excluded ranks if the aggregator is not a mean. For signs of `d` values
//! on `W` ranks, a rank sends `2(W − 1)/W · d/8` bytes and 24 per message.
//!
//! **Properties.** `sent` is the content of a rank's messages. The average differs from its mean by the error of the downlink (law 2). With
//! server error feedback the sum over steps differs by the servers' residual: `Σ average + e = Σ mean of sent`, to rounding. The bits do
//! not depend on which ranks serve: the vector is cut into as many shares as there are ranks, even if one rank serves them all.
//!
//! **State.** `e`: each server's share of a vector. Dropped after a change of the world size.
//!
//! **Deviations.** The residual is not scaled by the learning rate, as in DoubleSqueeze. NEOLITHIC's sources differ about error feedback;
//! here the exchange's feedback applies to the uplink and `server_memory` to the downlink. Its `R` rounds do not depend on replies in
//! between, so their messages are sent together. A share cuts tensors: with `per_slot` a scale covers one tensor's values within one share.
//!
//! **Reference.** J. Bernstein, J. Zhao, K. Azizzadenesheli, A. Anandkumar, *signSGD with Majority Vote is Communication Efficient and
//! Fault Tolerant*, ICLR 2019 (arXiv 1810.05291), algorithm 1; H. Tang, C. Yu, X. Lian, T. Zhang, J. Liu, *DoubleSqueeze: Parallel
//! Stochastic Gradient Descent with Double-pass Error-Compensated Compression*, ICML 2019 (arXiv 1905.05957), algorithm 1; X. Huang,
//! Y. Chen, W. Yin, K. Yuan, *Lower Bounds and Nearly Optimal Algorithms in Distributed Learning with Communication Compression*,
//! NeurIPS 2022 (arXiv 2206.03665).
//!
//! ```
//! use briquette_core::{Key, Layout};
//! use briquette_core::comm::Local;
//! use briquette_core::config::Exchange;
//! use briquette_core::reduce::{AgreedStep, Reducer, Round};
//! briquette_zoo::install();
//! let exchange = Exchange { reducer: "two-way:plain-sign,down=plain-sign,server_memory=false".parse()?, ..Exchange::default() };
//! let layout = Layout::flat(3);
//! let votes = Local::run(3, |mut comm| {
//!     let gradient = [[0.1, -5.0, 2.0], [0.2, -0.1, -1.0], [-9.0, 3.0, 0.5]][comm.rank()];
//!     let (mut reducer, mut average) = (exchange.build_reducer(&layout, 3).expect("valid settings"), [0.0; 3]);
//!     let round = Round { key: Key::new(0), slots: layout.slots(), agreed_step: &AgreedStep::default(),
//!         input: &gradient, average: &mut average, sent: None };
//!     reducer.exchange(round, &mut comm).map(|_| average)
//! });
//! assert!(votes.into_iter().all(|vote| vote.is_ok_and(|vote| vote == [1.0, -1.0, 1.0]))); // two of three, however large
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod config;

pub use config::TwoWayConfig;

use std::fmt;
use std::ops::Range;

use super::downlink::Downlink;
use super::link::LinkEncoder;
use briquette_core::aggregate::Aggregator;
use briquette_core::error::{AggregateError, ReduceError, WireError};
use briquette_core::reduce::{
    Exchanged, Reducer, Round, Selection, check_average, gather::without, incoming::Incoming,
};
use briquette_core::report::Report;
use briquette_core::wrapper::check_finite;
use briquette_core::{Frame, Key, Message, Session, Slot, stateful};

/// Compression in both directions through servers; see the [module](self).
pub struct TwoWay {
    settings: TwoWayConfig,
    aggregator: Box<dyn Aggregator>,
    up: LinkEncoder,
    down: Downlink,
    incoming: Incoming,
    /// This rank's messages for the parts that it serves.
    mine: Vec<Message>,
    /// Decoded messages by rank.
    decoded: Vec<Vec<Message>>,
    /// The mean of the range that this rank serves.
    mean: Vec<f32>,
    bytes: Vec<u8>,
    frames: Vec<Frame>,
    excluded: Vec<usize>,
}

impl fmt::Debug for TwoWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TwoWay").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// The server and range of one message.
#[derive(Debug, Clone)]
struct Part {
    server: usize,
    range: Range<usize>,
}

impl TwoWay {
    /// Returns the parts of a vector in order: one share per rank, or with `per_slot` the intersections of slots and shares.
    fn parts(&self, slots: &[Slot], len: usize, world: usize) -> Vec<Part> {
        let mut parts = Vec::new();
        for share in 0..world {
            let (server, share) =
                (self.settings.server.unwrap_or(share), share * len / world..(share + 1) * len / world);
            let cut = |slot: &Slot| slot.range().start.max(share.start)..slot.range().end.min(share.end);
            let ranges = match self.settings.per_slot {
                true => slots.iter().map(cut).collect(),
                false => vec![share.clone()],
            };
            parts.extend(ranges.into_iter().filter(|range| !range.is_empty()).map(|range| Part { server, range }));
        }
        parts
    }

    /// Writes the messages to all servers, and their content to `sent`.
    fn send(&mut self, round: &mut Round<'_>, parts: &[Part], comm: &mut Session) -> Result<(), ReduceError> {
        let rank = comm.rank();
        let frames = &mut self.incoming.frames;
        frames.drain(..).for_each(|frame| comm.pool().put(frame));
        frames.resize_with(comm.world(), Frame::new);
        let (mut count, rounds, weight) = (0, self.up.rounds(), self.up.weight());
        self.mine.resize_with(rounds * parts.iter().filter(|part| part.server == rank).count(), Message::default);
        if let Some(sent) = &mut round.sent {
            sent.fill(0.0);
        }
        for (index, Part { server, range }) in parts.iter().enumerate() {
            let (frame, mine, sent) = (&mut frames[*server], &mut self.mine, &mut round.sent);
            let sending = self.up.send(&round.input[range.clone()], round.key.rank(rank).bucket(index), |message| {
                if let Some(sent) = sent {
                    message.add_to(weight, &mut sent[range.clone()])?;
                }
                if *server == rank {
                    std::mem::swap(&mut mine[count], message);
                    count += 1;
                    return Ok(());
                }
                message.append_frame(frame)
            });
            sending.map_err(|source| AggregateError::Message { rank, source })?;
        }
        match &round.sent {
            Some(sent) => check_finite(sent, round.slots, rank),
            None => Ok(()),
        }
    }

    /// Aggregates the messages received for this server's parts.
    fn combine(&mut self, parts: &[Part], comm: &Session) -> Result<(), ReduceError> {
        let (rank, is_mean) = (comm.rank(), self.aggregator.is_mean());
        let mine = || parts.iter().filter(|part| part.server == rank).map(|part| part.range.len());
        self.mean.clear();
        self.mean.resize(mine().sum(), 0.0);
        self.incoming.begin(!is_mean, rank, &mut self.mine)?;
        if is_mean { self.sum(mine(), comm) } else { self.apply(mine(), comm) }
    }

    /// Computes the mean of the received messages. Sums before dividing, so that votes that cancel out give 0.
    fn sum(&mut self, lengths: impl Iterator<Item = usize>, comm: &Session) -> Result<(), ReduceError> {
        let (rank, world) = (comm.rank(), comm.world());
        self.decoded.resize_with(world, || vec![Message::default()]);
        let (mut messages, mut start) = (self.mine.iter(), 0);
        for len in lengths {
            let mean = &mut self.mean[start..start + len];
            start += len;
            for own in messages.by_ref().take(self.up.rounds()) {
                self.incoming.next(rank, &mut self.decoded, (0, len))?;
                for (from, decoded) in self.decoded.iter().enumerate() {
                    let message = if from == rank { own } else { &decoded[0] };
                    message.add_to(1.0, mean).map_err(|source| AggregateError::Message { rank: from, source })?;
                }
            }
            let weight = self.up.weight() / world as f32;
            mean.iter_mut().for_each(|sum| *sum *= weight);
        }
        Ok(self.incoming.end(rank)?)
    }

    /// Applies an aggregator other than the mean to the ranks of which every part can be used.
    fn apply(&mut self, lengths: impl Iterator<Item = usize>, comm: &Session) -> Result<(), ReduceError> {
        let (rank, world, lengths) = (comm.rank(), comm.world(), lengths.collect::<Vec<_>>());
        self.decoded.resize_with(world, Vec::new);
        self.decoded.iter_mut().for_each(|messages| messages.resize_with(lengths.len(), Message::default));
        for place in lengths.iter().copied().enumerate() {
            self.incoming.next(rank, &mut self.decoded, place)?;
        }
        self.incoming.end(rank)?;
        let excluded = self.incoming.excluded();
        let ranks: Vec<usize> = (0..world).filter(|rank| !excluded.contains(rank)).collect();
        let mut for_some = if excluded.is_empty() { None } else { Some(without(&*self.aggregator, excluded, world)?) };
        let rule = for_some.as_mut().unwrap_or(&mut self.aggregator);
        let mut start = 0;
        for (part, len) in lengths.into_iter().enumerate() {
            let of = |from: &usize| if *from == rank { &self.mine[part] } else { &self.decoded[*from][part] };
            let column: Vec<&Message> = ranks.iter().map(of).collect();
            rule.combine(&[], &column, &mut self.mean[start..start + len])?;
            start += len;
        }
        Ok(())
    }

    /// Writes the excluded ranks before a server's messages.
    fn mark(&mut self, world: usize) {
        self.excluded.clear();
        self.incoming.report(&mut self.excluded);
        self.bytes.resize(world.div_ceil(8), 0);
        self.excluded.iter().for_each(|rank| self.bytes[rank / 8] |= 1 << (rank % 8));
    }

    /// Writes the average from the messages of all servers.
    fn receive(&mut self, parts: &[Part], round: Round<'_>, rank: usize) -> Result<(), ReduceError> {
        let Round { slots, average, agreed_step, .. } = round;
        let world = self.frames.len();
        let marks = if self.aggregator.is_mean() { 0 } else { world.div_ceil(8) };
        let mut cursors = vec![marks; world];
        std::mem::swap(&mut self.frames[rank], &mut self.bytes);
        self.excluded.clear();
        for (server, frame) in self.frames.iter().enumerate().filter(|(_, frame)| !frame.is_empty()) {
            let truncated = WireError::Truncated { what: "excluded ranks", needed: marks, left: frame.len() };
            let marked = frame.get(..marks).ok_or(AggregateError::Message { rank: server, source: truncated })?;
            self.excluded.extend((0..world).filter(|rank| marks > 0 && marked[rank / 8] >> (rank % 8) & 1 == 1));
        }
        self.excluded.sort_unstable();
        self.excluded.dedup();
        for Part { server, range } in parts {
            let frame = &mut self.frames[*server];
            let part = (*server, range.clone());
            self.down.read((frame, &mut cursors[*server]), part, slots, average)?;
        }
        let mut ends = self.frames.iter().zip(cursors).enumerate();
        ends.try_for_each(|(server, (frame, cursor))| Downlink::end(frame, cursor, server))?;
        self.down.finish(average, agreed_step)?;
        check_average(average, slots)
    }
}

stateful! {
    impl Stateful for TwoWay { down: flatten() }
}

impl Reducer for TwoWay {
    fn reduce(&mut self, mut round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let (rank, world) = (comm.rank(), comm.world());
        let parts = self.parts(round.slots, round.input.len(), world);
        self.send(&mut round, &parts, comm)?;
        let selection = if self.up.selects() { Selection::Some } else { Selection::All };
        let key = |index: usize| round.key.purpose("down").bucket(index);
        let served = parts.iter().enumerate().filter(|(_, part)| part.server == rank);
        let served: Vec<(Key, Range<usize>)> = served.map(|(index, part)| (key(index), part.range.clone())).collect();
        let exchanged = Exchanged::count(comm, selection, |comm| {
            comm.all_to_all(&mut self.incoming.frames)?;
            self.combine(&parts, comm)?;
            self.bytes.clear();
            if !self.aggregator.is_mean() {
                self.mark(world);
            }
            self.down.send(&mut self.mean, &served, round.agreed_step, rank, &mut self.bytes)?;
            Ok(comm.all_gather(&self.bytes, &mut self.frames)?)
        })?;
        self.receive(&parts, round, rank)?;
        Ok(exchanged)
    }

    fn hold(&mut self, absent: &[Range<usize>]) {
        self.down.hold(absent);
    }

    fn report(&self, report: &mut Report) {
        report.ratio = self.up.nominal();
        report.excluded.extend(&self.excluded);
    }
}

#[cfg(test)]
mod tests;

//! Artemis: compression of uplink and downlink, with memories for heterogeneous data and random partial participation.
//!
//! **Why, and when not.** In an all-gather of compressed messages, each of `W` ranks receives `W − 1` messages. Here it receives one: the
//! mean, compressed again. Ranks with different data have different gradients even at the optimum, and compressing them causes an error that
//! does not vanish. Here each rank compresses the *difference* to a memory (a vector that follows the gradient), as in
//! [DIANA](crate::wrapper::shifted::Shifted). Compressing the mean adds noise that no memory removes: the variance of mini-batch gradients
//! counts `1 + ω_down` times. Not for contractive compressors. Not inside error feedback, because Artemis has its own memories.
//!
//! **Method.** A *server* is a rank that serves a range of the vector: each rank serves an equal share, or one rank the
//! whole. In every exchange, with `ω_up` and `ω_down` the error bounds of the uplink and downlink compressors `C_up` and
//! `C_dwn`:
//!
//! | paper | here |
//! |---|---|
//! | `S_k`, each worker with probability `p`; drawn again if it is empty (the authors' code) | drawn from the exchange's key: every rank knows it |
//! | `Δ̂ᵢ = C_up(gᵢ − hᵢ)`, `hᵢ ← hᵢ + αΔ̂ᵢ` for `i ∈ S_k` | one message per range, to its server; `memory` |
//! | PP1: the server keeps all `hᵢ`; `ĝ = 1/(pN) Σ_{S_k} (hᵢ + Δ̂ᵢ)` | [`Variant::Pp1`], `served` |
//! | PP2: the server keeps `H`; `ĝ = H + 1/(pN) Σ_{S_k} Δ̂ᵢ`, `H ← H + α/N Σ_{S_k} Δ̂ᵢ` | [`Variant::Pp2`], `served` |
//! | `Ω = C_dwn(ĝ)`, to all | the average, gathered from all servers |
//!
//! `α` is `1/(2(1 + ω_up))` unless set, as in the authors' code. With `p = 1` PP1 and PP2 are the same except for rounding. With a lossless
//! downlink and `p = 1` they are DIANA.
//!
//! **On the wire.** An active rank sends each server its message for that server's range (an all-to-all). Then each server sends its
//! range to all ranks (an all-gather). If all ranks are servers, a rank sends and receives about `(W − 1)/W` of an uplink message of the
//! whole vector, and `W − 1` downlink messages of `1/W` of the vector. An inactive rank sends nothing on the uplink.
//!
//! **Properties.** Unbiased if both compressors are. Before the downlink, a rank's `sent` is `hᵢ + Δ̂ᵢ/p̂` if it is active, else `hᵢ`
//! (PP2). The average is `C_dwn` of the mean of `sent` over ranks, which law 2 checks within that compressor's error bound. With full
//! gradients, convergence to the optimum is linear under PP2 for any `p`. Under PP1 with `p < 1` it stalls, because the whole contribution
//! of an absent rank is missing.
//!
//! *Rounding.* As in DIANA, `H` and the mean of the `hᵢ` drift apart by about `√t·ε` of the largest difference sent. On ten quadratics,
//! squared distances to the optimum decrease from 3.7 to 2e-11 (PP2 at `p = ½`: 7e-12); dense gradients end at 3e-12 in f32. Without
//! memories they stall at 0.04, and under PP1 at 0.1 (`artemis` in `benches/`).
//!
//! **State.** `hᵢ`: one vector per rank. On a server also its range of `H`, or under PP1 of every `hᵢ`. Twice as much during an exchange.
//! After a change of the world size every rank gets the mean of the `hᵢ`, or none, and servers start from the ranks' memories.
//!
//! **Deviations.** The paper's text changes `H` with the ratio `α/N`, the authors' code with `α/(pN)`. Here it is `α/N`, the only one that
//! keeps `H` equal to the mean of the `hᵢ`, and with it `ĝ` unbiased. `p̂` replaces `p` in `1/(pN)`: it is the probability of being in a
//! set that is not empty, `p/(1 − (1−p)^N)`. Every rank computes a gradient and receives the average, even if it does not send, so no rank
//! has to catch up. Each bucket draws its own active ranks. For a memory on the downlink see [MCM](crate::reduce::mcm).
//!
//! **Reference.** C. Philippenko, A. Dieuleveut, *Bidirectional compression in heterogeneous settings for distributed or federated
//! learning with partial participation: tight convergence guarantees*, 2020 (arXiv 2006.14591), algorithm 1 and §4.
//!
//! ```
//! use briquette_core::{Key, Layout};
//! use briquette_core::comm::Local;
//! use briquette_core::config::Exchange;
//! use briquette_core::reduce::{AgreedStep, Reducer, Round};
//! briquette_zoo::install();
//! let exchange = Exchange { reducer: "artemis:dense,down=dense,alpha=0.5".parse()?, ..Exchange::default() };
//! let layout = Layout::flat(2);
//! let mut reducer = exchange.build_reducer(&layout, 1)?;
//! let mut average = [0.0; 2];
//! reducer.exchange(Round { key: Key::new(0), slots: layout.slots(), agreed_step: &AgreedStep::default(),
//!     input: &[3.0, -1.0], average: &mut average, sent: None }, &mut Local::world(1).remove(0))?;
//! assert_eq!(average, [3.0, -1.0]); // nothing is lost on either way
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod config;

pub use config::{ArtemisConfig, Variant};

use std::fmt;
use std::ops::Range;

use rand::Rng;

use super::downlink::Downlink;
use briquette_core::compress::Compressor;
use briquette_core::error::{AggregateError, ReduceError, WireError};
use briquette_core::math::all_finite;
use briquette_core::reduce::{Exchanged, Reducer, Round, Selection, check_average};
use briquette_core::report::Report;
use briquette_core::state::Staged;
use briquette_core::wrapper::check_finite;
use briquette_core::{Frame, Key, Message, Session, layout, stateful};

/// Reducer that compresses uplink and downlink; see the [module](self).
pub struct Artemis {
    up: Box<dyn Compressor>,
    down: Downlink,
    settings: ArtemisConfig,
    alpha: f32,
    /// `hᵢ`.
    memory: Staged<Vec<f32>>,
    /// This server's range of `H`, or of every `hᵢ` in rank order.
    served: Staged<Vec<f32>>,
    /// The range that this rank served last.
    mine: Range<usize>,
    message: Message,
    /// Input of the compressor: a difference, then the mean.
    scratch: Vec<f32>,
    bytes: Vec<u8>,
    parts: Vec<Frame>,
}

impl fmt::Debug for Artemis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Artemis").field("settings", &self.settings).field("alpha", &self.alpha).finish_non_exhaustive()
    }
}

/// Ranges and active ranks of an exchange.
struct Plan {
    /// The range that each rank serves.
    ranges: Vec<Range<usize>>,
    /// Set for each rank that participates.
    active: Vec<bool>,
    /// `1/p̂`.
    rare: f32,
}

/// Draws the ranks that participate, at least one.
pub(super) fn draw(key: Key, participation: f64, world: usize) -> Vec<bool> {
    let mut rng = key.purpose("participation").block(0);
    loop {
        let active: Vec<bool> = (0..world).map(|_| rng.random::<f64>() < participation).collect();
        if active.contains(&true) {
            return active;
        }
    }
}

impl Artemis {
    fn plan(&self, key: Key, len: usize, world: usize) -> Plan {
        let range = |rank: usize| match self.settings.server {
            None => rank * len / world..(rank + 1) * len / world,
            Some(server) => 0..if rank == server { len } else { 0 },
        };
        let p = self.settings.participation;
        let rare = (-(world as f64 * (-p).ln_1p()).exp_m1() / p) as f32;
        Plan { ranges: (0..world).map(range).collect(), active: draw(key, p, world), rare }
    }

    /// Allocates the memories. A server's memory starts as this rank's memory. That is zero at first, and after a change of the world
    /// size the value that every rank was given.
    fn prepare(&mut self, len: usize, mine: &Range<usize>, world: usize) -> Result<(), ReduceError> {
        let copies = if self.settings.variant == Variant::Pp1 { world } else { 1 };
        self.memory.fit(len)?;
        self.served.fit(copies * mine.len())?;
        let (memory, next_memory) = self.memory.both();
        next_memory.copy_from_slice(memory);
        if let Some(begins) = self.served.begins().filter(|_| !mine.is_empty()) {
            begins.chunks_exact_mut(mine.len()).for_each(|copy| copy.copy_from_slice(&memory[mine.clone()]));
        }
        let (served, next_served) = self.served.both();
        next_served.copy_from_slice(served);
        Ok(())
    }

    /// Encodes this rank's messages, updates its memory, and writes the frames to send.
    fn send(&mut self, round: &Round<'_>, plan: &Plan, comm: &mut Session) -> Result<(), ReduceError> {
        let rank = comm.rank();
        self.parts.drain(..).for_each(|frame| comm.pool().put(frame));
        self.parts.resize_with(plan.ranges.len(), Frame::new);
        if !plan.active[rank] {
            return Ok(());
        }
        let (memory, next) = self.memory.both();
        self.scratch.clear();
        self.scratch.extend(round.input.iter().zip(memory).map(|(input, memory)| input - memory));
        check_finite(&self.scratch, round.slots, rank)?;
        for (server, range) in plan.ranges.iter().enumerate().filter(|(_, range)| !range.is_empty()) {
            let key = round.key.rank(rank).bucket(server);
            self.up.compress_into(&self.scratch[range.clone()], key, &mut self.message);
            self.parts[server] = comm.pool().take_for(self.message.encoded_len());
            self.message.encode_into(&mut self.parts[server]);
            add(&self.message, self.alpha, &mut next[range.clone()], rank)?;
        }
        check_finite(next, round.slots, rank)
    }

    /// Writes this rank's contribution to the mean over ranks. An absent rank contributes its memory (PP2) or nothing (PP1).
    fn sent(&mut self, sent: &mut [f32], plan: &Plan, rank: usize) -> Result<(), ReduceError> {
        let (rare, is_active) = (plan.rare, plan.active[rank]);
        let kept = match (self.settings.variant, is_active) {
            (Variant::Pp2, _) => 1.0,
            (Variant::Pp1, true) => rare,
            (Variant::Pp1, false) => 0.0,
        };
        let memory = self.memory.both().0;
        sent.iter_mut().zip(memory).for_each(|(sent, memory)| *sent = kept * memory);
        for (range, bytes) in plan.ranges.iter().zip(&self.parts).filter(|(range, _)| is_active && !range.is_empty()) {
            read(bytes, range.len(), rank, &mut self.message)?;
            add(&self.message, rare, &mut sent[range.clone()], rank)?;
        }
        Ok(())
    }

    /// Computes the mean of this server's range in `scratch`, and updates the served memory.
    fn serve(&mut self, plan: &Plan, mine: &Range<usize>) -> Result<(), ReduceError> {
        let world = plan.ranges.len();
        let (weight, len) = (plan.rare / world as f32, mine.len());
        let served = self.served.next_mut();
        self.scratch.clear();
        match self.settings.variant {
            Variant::Pp1 => self.scratch.resize(len, 0.0),
            Variant::Pp2 => self.scratch.extend_from_slice(served),
        }
        for (from, bytes) in self.parts.iter().enumerate().filter(|(from, _)| plan.active[*from]) {
            read(bytes, len, from, &mut self.message)?;
            add(&self.message, weight, &mut self.scratch, from)?;
            match self.settings.variant {
                Variant::Pp1 => {
                    let copy = &mut served[from * len..][..len];
                    self.scratch.iter_mut().zip(&*copy).for_each(|(sum, memory)| *sum += weight * memory);
                    add(&self.message, self.alpha, copy, from)?;
                }
                Variant::Pp2 => add(&self.message, self.alpha / world as f32, served, from)?,
            }
        }
        Ok(())
    }

    /// Writes the average from the messages of all servers; this server's own message is in `bytes`.
    fn receive(&mut self, plan: &Plan, round: Round<'_>, rank: usize) -> Result<(), ReduceError> {
        let Round { slots, average, agreed_step, .. } = round;
        let absent = self.down.is_per_rank() && !plan.active[rank];
        for (server, range) in plan.ranges.iter().enumerate().filter(|(_, range)| !range.is_empty()) {
            let frame = if server == rank { &mut self.bytes } else { &mut self.parts[server] };
            if absent {
                Downlink::absent(frame, (server, range.clone()), slots, average)?;
                continue;
            }
            let mut cursor = 0;
            self.down.read((frame, &mut cursor), (server, range.clone()), slots, average)?;
            Downlink::end(frame, cursor, server)?;
        }
        if !absent {
            self.down.finish(average, agreed_step)?;
        }
        check_average(average, slots)
    }
}

/// Decodes the message of `rank`, of `len` values.
fn read(bytes: &[u8], len: usize, rank: usize, out: &mut Message) -> Result<(), AggregateError> {
    let fits = out.decode_from(bytes).and_then(|()| match out.len() {
        got if got == len => Ok(()),
        got => Err(WireError::Length { expected: len, got }),
    });
    fits.map_err(|source| AggregateError::Message { rank, source })
}

fn add(message: &Message, weight: f32, out: &mut [f32], rank: usize) -> Result<(), AggregateError> {
    message.add_to(weight, out).map_err(|source| AggregateError::Message { rank, source })
}

stateful! {
    impl Stateful for Artemis {
        memory: vector("memory").rank_local(Spread),
        served: vector("served").rank_local(Drop),
        down: flatten(),
    }
}

impl Reducer for Artemis {
    fn reduce(&mut self, mut round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let (rank, world) = (comm.rank(), comm.world());
        let plan = self.plan(round.key, round.input.len(), world);
        let mine = plan.ranges[rank].clone();
        self.prepare(round.input.len(), &mine, world)?;
        self.mine.clone_from(&mine);
        self.send(&round, &plan, comm)?;
        if let Some(sent) = round.sent.take() {
            self.sent(sent, &plan, rank)?;
        }
        let exchanged = Exchanged::count(comm, Selection::All, |comm| {
            comm.all_to_all(&mut self.parts)?;
            let serves = !mine.is_empty();
            if serves {
                self.serve(&plan, &mine)?;
            }
            let part = (round.key.purpose("down").bucket(rank), mine.clone());
            let finite = serves && all_finite(self.served.next_mut());
            self.bytes.clear();
            if self.down.is_per_rank() {
                self.parts.iter_mut().for_each(Frame::clear);
                if finite {
                    let to = (&mut self.parts[..], &plan.active[..]);
                    self.down.send_to_each(&self.scratch, part, round.agreed_step, rank, to)?;
                }
                std::mem::swap(&mut self.bytes, &mut self.parts[rank]);
                return Ok(comm.all_to_all(&mut self.parts)?);
            }
            if finite {
                self.down.send(&mut self.scratch, &[part], round.agreed_step, rank, &mut self.bytes)?;
            }
            Ok(comm.all_gather(&self.bytes, &mut self.parts)?)
        })?;
        self.receive(&plan, round, rank)?;
        self.memory.stage();
        self.served.stage();
        Ok(exchanged)
    }

    fn hold(&mut self, absent: &[Range<usize>]) {
        self.memory.hold(absent);
        let (mine, len) = (layout::inside(absent, &self.mine), self.mine.len());
        let copies = self.served.latest().len() / len.max(1);
        (0..copies).for_each(|copy| self.served.hold(&layout::moved(&mine, copy * len)));
        self.down.hold(absent);
    }

    fn report(&self, report: &mut Report) {
        report.ratio = Some(self.up.nominal());
    }
}

#[cfg(test)]
mod tests;

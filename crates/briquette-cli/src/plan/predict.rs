//! Predicted seconds of a step: the frames of an exchange, sent through a simulated network.

use std::time::Duration;

use briquette_core::comm::SMALL_ALL_REDUCE;
use briquette_core::error::CommError;
use briquette_core::sync::pace;
use briquette_sim::{Compute, Event, Network, replay};

/// Bytes on a link for each byte of a message. Headers of TCP, IP and Ethernet and the gaps between packets take 6 % (1538 for 1448). Acknowledgments
/// and congestion control take another 5 % or so: measured over shaped links of 0.1 to 1 Gbit/s (`benches/plan.py`).
pub(crate) const ON_LINK: f64 = 1.055 * 1538.0 / 1448.0;
/// Bytes of a step header, about.
const HEADER: usize = 128;
/// Values of a frame of the ring, unless a chunk has more than `MOST_FRAMES`.
const RING_FRAME: usize = 1 << 16;
/// Frames of a chunk, at most: more change the seconds by less than 1 %.
const MOST_FRAMES: usize = 32;
/// Frames of the ring that a rank sends before it waits for the first.
const RING_AHEAD: usize = 4;

/// Messages of an exchange.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Messages {
    /// A ring all-reduce, with the bytes of a value.
    Ring { value: f64 },
    /// A message from each rank to each other one, with its bytes.
    Gather { message: usize },
}

/// Steps for each exchange; above 1, local steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Every {
    Steps(u64),
    /// A [period](pace) that follows the link, up to `longest`.
    Adaptive {
        longest: u64,
    },
}

/// Groups of exchanges that are compared with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Dense,
    /// One between which `auto` chooses.
    OfAuto,
    LocalSteps,
    Other,
}

/// An exchange to predict.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Exchange {
    /// Name in the table.
    pub(super) name: String,
    /// Text form of the configuration.
    pub(super) config: String,
    pub(super) kind: Kind,
    pub(super) messages: Messages,
    pub(super) every: Every,
    /// Seconds to encode the vector.
    pub(super) encode: f64,
    /// Seconds to decode it.
    pub(super) decode: f64,
}

/// Mean seconds of a step of the slowest rank, by part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Seconds {
    pub(super) compute: f64,
    pub(super) codec: f64,
    pub(super) network: f64,
    /// Steps for each exchange.
    pub(super) every: u64,
}

impl Seconds {
    /// Returns their sum.
    #[must_use]
    pub(super) fn step(&self) -> f64 {
        self.compute + self.codec + self.network
    }
}

impl Exchange {
    /// Predicts a step of a world of two or more ranks, in which each rank computes for a time, with a vector of this many values.
    ///
    /// # Errors
    /// [`CommError`] if the simulation cannot be run, for example for lack of threads.
    pub(super) fn predict(
        &self,
        values: usize,
        compute: Duration,
        network: &Network,
        world: usize,
    ) -> Result<Seconds, CommError> {
        let end = |events: &[Vec<Event>]| -> Result<f64, CommError> {
            let ends = replay(events, network.clone(), &Compute::Fixed(compute))?;
            Ok(ends.iter().flatten().copied().fold(0.0, f64::max) - compute.as_secs_f64())
        };
        let events: Vec<Vec<Event>> = (0..world).map(|rank| self.events(rank, world, values)).collect();
        let codec = events[0].iter().map(|event| if let Event::Compressed(seconds) = event { *seconds } else { 0.0 });
        let codec: f64 = codec.sum();
        let (exchange, compute) = (end(&events)?, compute.as_secs_f64());
        let every = match self.every {
            Every::Steps(steps) => steps,
            Every::Adaptive { longest } => {
                let header: Vec<Vec<Event>> = (0..world).map(|rank| header(rank, world)).collect();
                pace::period(compute, exchange - end(&header)?, longest)
            }
        };
        let network = exchange - codec;
        Ok(Seconds { compute, codec: codec / every as f64, network: network / every as f64, every })
    }

    /// Returns the events of a rank in a step with an exchange.
    fn events(&self, rank: usize, world: usize, values: usize) -> Vec<Event> {
        let mut events = header(rank, world);
        match self.messages {
            Messages::Gather { message } => {
                events.push(Event::Compressed(self.encode));
                gather(&mut events, rank, world, message);
                events.push(Event::Compressed(self.decode * world as f64));
            }
            Messages::Ring { value } if values <= SMALL_ALL_REDUCE => {
                gather(&mut events, rank, world, (value * values as f64) as usize);
            }
            Messages::Ring { value } => self.ring(&mut events, (rank, world), values, value),
        }
        events
    }

    /// Adds a ring all-reduce, whose codec takes its seconds frame by frame: each value is encoded once, and decoded twice.
    fn ring(&self, events: &mut Vec<Event>, (rank, world): (usize, usize), values: usize, value: f64) {
        let chunk = values.div_ceil(world);
        let frames = chunk.div_ceil(RING_FRAME).min(MOST_FRAMES);
        let total = 2 * (world - 1) * frames;
        let (next, previous) = ((rank + 1) % world, (rank + world - 1) % world);
        let sent = Event::Sent(next, on_link(value * chunk as f64 / frames as f64));
        let codec = (self.encode + 2.0 * self.decode) * (world - 1) as f64 / world as f64 / total as f64;
        let ahead = frames.min(RING_AHEAD).min(total);
        events.extend(vec![sent; ahead]);
        for number in 0..total {
            events.extend([Event::Received(previous), Event::Compressed(codec)]);
            events.extend((number + ahead < total).then_some(sent));
        }
    }
}

/// Returns the events of a rank in the exchange of the step header.
fn header(rank: usize, world: usize) -> Vec<Event> {
    let mut events = vec![Event::BeginStep];
    gather(&mut events, rank, world, HEADER);
    events
}

/// Adds an all-gather of a message of each rank.
fn gather(events: &mut Vec<Event>, rank: usize, world: usize, bytes: usize) {
    events.extend((1..world).map(|ahead| Event::Sent((rank + ahead) % world, on_link(bytes as f64))));
    events.extend((1..world).map(|behind| Event::Received((rank + world - behind) % world)));
}

fn on_link(bytes: f64) -> usize {
    (bytes * ON_LINK) as usize
}

#[cfg(test)]
mod tests {
    use briquette_core::comm::run_ranks;
    use briquette_sim::Simulated;

    use super::*;

    fn exchange(messages: Messages) -> Exchange {
        Exchange {
            name: String::new(),
            config: String::new(),
            kind: Kind::Other,
            messages,
            every: Every::Steps(1),
            encode: 0.0,
            decode: 0.0,
        }
    }

    #[test]
    fn a_prediction_is_a_simulated_exchange_with_a_header_and_tcp() {
        let (compute, values) = (Duration::from_millis(10), 400_000); // chunks have as many frames as with `more` values
        let network: Network = "1gbit,200us".parse().unwrap();
        for world in [2, 4, 5] {
            let simulated = |what: &(dyn Fn(&mut briquette_core::Session) + Sync)| {
                let ends = run_ranks(Simulated::world(world, network.clone(), Compute::Fixed(compute)), |mut comm| {
                    comm.begin_step(0);
                    comm.all_gather(&vec![0; (HEADER as f64 * ON_LINK) as usize], &mut Vec::new()).unwrap();
                    what(&mut comm);
                    Ok::<_, CommError>(comm.now())
                });
                ends.into_iter().map(Result::unwrap).fold(0.0, f64::max)
            };
            // A link that is slower by the headers: here values and bytes are more instead.
            let more = (values as f64 * ON_LINK) as usize;
            let ring = simulated(&|comm| comm.all_reduce_sum(&mut vec![0.0; more]).unwrap());
            let gathered = simulated(&|comm| comm.all_gather(&vec![0; more], &mut Vec::new()).unwrap());
            for (messages, seconds) in
                [(Messages::Ring { value: 4.0 }, ring), (Messages::Gather { message: values }, gathered)]
            {
                let predicted = exchange(messages).predict(values, compute, &network, world).unwrap().step();
                assert!((predicted / seconds - 1.0).abs() < 0.02, "{world}, {messages:?}: {predicted}, {seconds}");
            }
        }
    }

    #[test]
    fn long_chunks_have_few_frames() {
        let (network, values) = ("1gbit,200us".parse().unwrap(), 40 * MOST_FRAMES * RING_FRAME);
        let ring = |values| {
            let seconds = exchange(Messages::Ring { value: 4.0 }).predict(values, Duration::ZERO, &network, 2).unwrap();
            seconds.network / values as f64
        };
        // Per value, as many as with the frames of a chunk that has just as many as it may have.
        assert!((ring(values) / ring(2 * MOST_FRAMES * RING_FRAME) - 1.0).abs() < 0.01);
    }

    #[test]
    fn seconds_of_codecs_and_local_steps_by_hand() {
        let compute = Duration::from_millis(100);
        // 2 ranks: 1 s of encoding, 2 · 0.5 s of decoding; 1 MB at 8 Mbit/s.
        let gather = Exchange { encode: 1.0, decode: 0.5, ..exchange(Messages::Gather { message: 1_000_000 }) };
        let network = "8mbit".parse().unwrap();
        let seconds = gather.predict(1_000_000, compute, &network, 2).unwrap();
        assert_eq!((seconds.compute, seconds.codec), (0.1, 2.0));
        assert!((seconds.network - ON_LINK * (1.0 + 128e-6)).abs() < 1e-5, "{seconds:?}");
        let local =
            Exchange { every: Every::Steps(10), ..gather.clone() }.predict(1_000_000, compute, &network, 2).unwrap();
        assert!((local.network - seconds.network / 10.0).abs() < 1e-9 && local.compute == 0.1, "{local:?}");
        // 3.12 s of exchange against steps of 0.1 s: 0.1 + 3.12/32 = 0.198 s a step, and 0.295 s with 16 local steps. With steps of 100 s, 1.
        let adaptive = |of: &Exchange| Exchange { every: Every::Adaptive { longest: 32 }, ..of.clone() };
        let every =
            |of: &Exchange, compute, network| adaptive(of).predict(1_000_000, compute, &network, 2).unwrap().every;
        assert_eq!((every(&gather, compute, network.clone()), every(&gather, 1000 * compute, network)), (32, 1));
        // A message of 1 ms against steps of 30 ms: 31 ms at each step, at most 31.5 ms. The header, another 1 ms, does not count.
        let small = exchange(Messages::Gather { message: 8 });
        assert_eq!(every(&small, Duration::from_millis(30), "unlimited,1ms".parse().unwrap()), 1);
        // A ring over 2 ranks encodes a half and decodes it twice.
        let ring = Exchange { messages: Messages::Ring { value: 1.0 }, ..gather };
        assert!((ring.predict(1_000_000, compute, &"8mbit".parse().unwrap(), 2).unwrap().codec - 1.0).abs() < 1e-9);
    }
}

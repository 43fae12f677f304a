//! What MCM is for: with gradient noise, the exact model that servers keep is as near to the optimum as with exact means downwards, where
//! compressing the mean (Artemis) leaves it several times as far (paper, theorems 2 and 3).

use briquette_core::comm::Local;
use briquette_core::config::Exchange;
use briquette_core::error::ReduceError;
use briquette_core::reduce::{AgreedStep, Reducer, Round};
use briquette_core::{Key, Layout};
use rand::Rng;

const LEN: usize = 20;
const RANKS: usize = 10;
const RATE: f32 = 0.005;

/// The mean of `‖w − w*‖²` after the first third of `rounds`, where `w` is what ranks train, or the servers' model, to which the means of what
/// was sent lead. A rank's loss
/// is `½ Σ aᵢxᵢ²` with curvatures in [1, 2], its gradients have noise of variance 1.
fn plateau(reducer: &str, of_servers: bool, rounds: u64) -> f64 {
    let exchange = Exchange { reducer: reducer.parse().unwrap(), ..Exchange::default() };
    let layout = Layout::flat(LEN);
    let sums = Local::run(RANKS, |mut comm| {
        let (mut reducer, rank) = (exchange.build_reducer(&layout, RANKS).unwrap(), comm.rank());
        // What ranks train; and this rank's part of the servers' model.
        let (mut x, mut w) = (vec![0.0_f32; LEN], vec![0.0_f32; LEN]);
        let (mut average, mut sent, mut models) = (vec![0.0; LEN], vec![0.0; LEN], Vec::new());
        for step in 0..rounds {
            let mut noise = Key::new(7).step(step).rank(rank).block(0);
            let gradient: Vec<f32> = (0..LEN)
                .map(|i| {
                    let curvature = 1.5 + 0.5 * (((i + 1) * (3 * rank + 2)) as f32 * 0.7).sin();
                    let normal: f32 = (0..12).map(|_| noise.random::<f32>()).sum::<f32>() - 6.0;
                    curvature * x[i] + normal
                })
                .collect();
            let agreed_step = &AgreedStep { step, learning_rate: Some(f64::from(RATE)), ..AgreedStep::default() };
            let (key, slots, average) = (Key::new(1).step(step), layout.slots(), &mut average[..]);
            let round = Round { key, slots, agreed_step, input: &gradient, average, sent: Some(&mut sent) };
            reducer.exchange(round, &mut comm)?;
            x.iter_mut().zip(&*average).for_each(|(x, average)| *x -= RATE * average);
            w.iter_mut().zip(&sent).for_each(|(w, sent)| *w -= RATE / RANKS as f32 * sent);
            if step >= rounds / 3 {
                models.push(if of_servers { w.clone() } else { x.iter().map(|x| x / RANKS as f32).collect() });
            }
        }
        Ok::<_, ReduceError>(models)
    });
    let ranks: Vec<_> = sums.into_iter().map(Result::unwrap).collect();
    let count = ranks[0].len();
    let energy = |at: usize| {
        let model = |i: usize| ranks.iter().map(|models| f64::from(models[at][i])).sum::<f64>();
        (0..LEN).map(|i| model(i).powi(2)).sum::<f64>()
    };
    (0..count).map(energy).sum::<f64>() / count as f64
}

#[test]
fn the_servers_model_does_not_feel_the_way_down_to_first_order() {
    let coarse = "qsgd:s1:512:l2";
    let [up, mcm, artemis] = [
        (format!("mcm:{coarse},down=dense,server=0,alpha=0"), true),
        (format!("mcm:{coarse},down={coarse},server=0,alpha=0"), true),
        (format!("artemis:{coarse},down={coarse},server=0,alpha=0"), false),
    ]
    .map(|(reducer, of_servers)| plateau(&reducer, of_servers, 2400));
    println!("up only {up:e}, MCM {mcm:e}, Artemis {artemis:e}: {:.2} and {:.2} times", mcm / up, artemis / up);
    assert!(mcm < 1.3 * up && artemis > 2.5 * up, "up only {up:e}, MCM {mcm:e}, Artemis {artemis:e}");
}

use super::*;
use crate::Layout;
use crate::comm::{Local, Session};
use crate::seam::AgreedStep;
use crate::state::{State, Stateful};
use crate::wrapper::error_feedback::ErrorFeedback;
use rand_distr::{Distribution, StandardNormal};

#[test]
fn columns_become_orthonormal_and_dependent_ones_zero() {
    // Columns (3,4,0), (3,4,5), and twice the first.
    let mut p = [3.0, 3.0, 6.0, 4.0, 4.0, 8.0, 0.0, 5.0, 0.0];
    orthonormalize(&mut p, 3);
    let expected = [0.6, 0.0, 0.0, 0.8, 0.0, 0.0, 0.0, 1.0, 0.0];
    assert!(p.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{p:?}");
}

#[test]
fn only_matrices_that_shrink_are_factored() {
    let layout = Layout::new([("big", vec![8, 8]), ("small", vec![2, 2]), ("bias", vec![5])]);
    let plan = LowRankPlan::new(layout.slots(), 1);
    assert_eq!(plan.matrices().len(), 1);
    assert_eq!(plan.dense().collect::<Vec<_>>(), [64..68, 68..73]);
    assert_eq!((plan.left_len(), plan.right_len(), plan.dense_len()), (8, 8, 9));
}

/// Returns a layout of two matrices with a vector between them; 160 values.
fn layout() -> Layout {
    Layout::new([("a", vec![10, 8]), ("bias", vec![10]), ("b", vec![7, 10])])
}

fn noise(rank: usize, step: u64, len: usize) -> Vec<f32> {
    let mut rng = Key::new(4).step(step).rank(rank).block(0);
    (0..len).map(|_| StandardNormal.sample(&mut rng)).collect()
}

/// Runs one exchange of the layout above and returns the average.
fn exchange(reducer: &mut dyn Reducer, step: u64, input: &[f32], comm: &mut Session) -> Result<Vec<f32>, ReduceError> {
    let (layout, mut average) = (layout(), vec![0.0; input.len()]);
    let agreed_step = AgreedStep { step, ..AgreedStep::default() };
    let (key, slots) = (Key::new(6).step(step), layout.slots());
    reducer
        .exchange(Round { key, slots, agreed_step: &agreed_step, input, average: &mut average, sent: None }, comm)?;
    Ok(average)
}

/// Returns the averages of a run, and the reducer at its end.
fn run<R: Reducer>(
    world: usize,
    steps: u64,
    make: impl Fn() -> R + Sync,
    input: impl Fn(usize, u64) -> Vec<f32> + Sync,
) -> Vec<(Vec<Vec<f32>>, R)> {
    let ranks = Local::run(world, |mut comm| {
        let mut reducer = make();
        let averages: Result<Vec<_>, _> =
            (0..steps).map(|step| exchange(&mut reducer, step, &input(comm.rank(), step), &mut comm)).collect();
        Ok::<_, ReduceError>((averages?, reducer))
    });
    ranks.into_iter().map(Result::unwrap).collect()
}

fn mean(vectors: impl ExactSizeIterator<Item = Vec<f32>>) -> Vec<f32> {
    let (count, mut sum) = (vectors.len() as f32, vec![0.0; 160]);
    vectors.for_each(|v| sum.iter_mut().zip(v).for_each(|(sum, v)| *sum += v));
    sum.iter().map(|v| v / count).collect()
}

fn furthest(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// For a diagonal of 2 and 1, one column finds the 2: each exchange starts from the result of the previous one, and leaves a quarter of the
/// error. With a restart at every exchange, the 1 would stay in.
#[test]
fn a_warm_start_finds_the_largest_direction() {
    let mut input = vec![0.0; 160];
    (input[0], input[9]) = (2.0, 1.0);
    let averages = run(1, 14, || PowerSgd::new(1).unwrap(), |_, _| input.clone()).remove(0).0;
    let off = |step: usize| (averages[step][0] - 2.0).abs().max(averages[step][9].abs());
    assert!(off(0) > 0.01 && off(12) < 1e-4 && off(13) < 1e-4, "{} {} {}", off(0), off(12), off(13));
}

#[test]
fn over_ranks_it_is_a_single_process_on_the_mean_gradient() {
    let make = || ErrorFeedback::new(PowerSgd::new(2).unwrap());
    for world in [2, 3, 5] {
        let ranks = run(world, 8, make, |rank, step| noise(rank, step, 160));
        let lone = run(1, 8, make, |_, step| mean((0..world).map(|rank| noise(rank, step, 160)))).remove(0);
        for (step, average) in lone.0.iter().enumerate() {
            assert!(ranks.iter().all(|rank| rank.0[step] == ranks[0].0[step]), "{world} ranks, step {step}");
            let off = furthest(&ranks[0].0[step], average);
            assert!(off < 1e-4, "{world} ranks, step {step}: off by {off:e}");
        }
        // The mean residual is the same; each rank's differs.
        let left = mean(ranks.iter().map(|rank| rank.1.residual().to_vec()));
        assert!(furthest(&left, &lone.1.residual()) < 1e-4, "{world} ranks");
        assert!(furthest(&ranks[0].1.residual(), &lone.1.residual()) > 0.1, "{world} ranks");
        // Every rank starts the next step with the same factors.
        let states = ranks.iter().map(|rank| saved(&rank.1).f32s("inner/q", None).unwrap().to_vec());
        let states: Vec<_> = states.collect();
        assert!(states[0].len() == 36 && states.iter().all(|q| *q == states[0]), "{world} ranks");
    }
}

fn saved(reducer: &dyn Stateful) -> State {
    let mut state = State::default();
    reducer.save(&mut state);
    state
}

/// Returns matrices of rank `rank`, and a vector.
fn low_rank(rank: usize) -> Vec<f32> {
    let mut out = noise(9, 0, 160);
    for slot in layout().slots() {
        let Some((rows, cols)) = slot.matrix() else { continue };
        let (left, right) = (noise(10, 1, rows * rank), noise(11, 2, cols * rank));
        for (i, v) in out[slot.range()].iter_mut().enumerate() {
            *v = (0..rank).map(|r| left[i / cols * rank + r] * right[i % cols * rank + r]).sum();
        }
    }
    out
}

#[test]
fn a_mean_of_low_rank_is_recovered_whatever_the_ranks_hold() {
    for kept in [1, 2] {
        for own in 1..=kept {
            let low = low_rank(own);
            for world in [1, 2, 3, 4] {
                // Noise of full rank whose sum over ranks is zero.
                let input = |rank: usize, _| {
                    let noise = noise(0, 5, 160);
                    let sign = [1.0, -1.0, 0.5, -0.5][rank];
                    let sign = if world == 3 {
                        [1.0, 1.0, -2.0][rank]
                    } else if world == 1 {
                        0.0
                    } else {
                        sign
                    };
                    low.iter().zip(noise).map(|(low, noise)| low + sign * noise).collect::<Vec<f32>>()
                };
                let averages = run(world, 2, || PowerSgd::new(kept).unwrap(), input).remove(0).0;
                for (step, average) in averages.iter().enumerate() {
                    let off = furthest(average, &low);
                    assert!(off < 1e-4, "rank {own} by {kept} columns, {world} ranks, step {step}: off by {off:e}");
                }
            }
        }
    }
}

#[test]
fn zeros_stay_zeros_and_leave_no_mark() {
    for world in [1, 3] {
        let input = |_, step| if step == 1 { low_rank(2) } else { vec![0.0; 160] };
        let averages = run(world, 3, || PowerSgd::new(2).unwrap(), input).remove(0).0;
        assert!(averages[0].iter().chain(&averages[2]).all(|v| *v == 0.0), "{world} ranks");
        // The columns that became zero were drawn again.
        assert!(furthest(&averages[1], &low_rank(2)) < 1e-4, "{world} ranks");
    }
}

#[test]
fn a_saved_start_that_has_no_factors_yet_is_taken_back() {
    let mut comm = Local::world(1).remove(0);
    let mut reducer = PowerSgd::new(2).unwrap();
    let fresh = saved(&reducer);
    let first = exchange(&mut reducer, 0, &noise(0, 0, 160), &mut comm).unwrap();
    let trained = saved(&reducer);
    reducer.load(&fresh).unwrap();
    assert_eq!(exchange(&mut reducer, 0, &noise(0, 0, 160), &mut comm).unwrap(), first);
    assert_eq!(saved(&reducer), trained);
    // Factors of another model are rejected.
    let mut other = State::default();
    other.put("q", vec![0.0_f32; 35]);
    assert!(reducer.load(&other).is_err());
    assert_eq!(saved(&reducer), trained);
}

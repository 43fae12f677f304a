//! Identities of exchanges that compress both ways, or have error feedback inside.

use super::*;

fn both_ways(text: &str, feedback: &str) -> Config {
    briquette_zoo::install();
    exchange(text.parse().expect("settings of a reducer"), &feedback.parse().expect("a feedback"))
}

/// Returns a rank's final parameters, from any of three ranks.
fn ends(config: &Config, world: usize) -> Vec<f32> {
    let mut ranks = train(config, world, 6);
    assert!(ranks.iter().all(|x| *x == ranks[0]));
    ranks.swap_remove(0)
}

#[test]
fn a_vote_of_one_rank_is_sign_sgd_and_of_an_odd_world_the_median_of_signs() {
    briquette_zoo::install();
    let vote = both_ways("two-way:plain-sign,down=plain-sign", "none");
    assert_eq!(ends(&vote, 1), ends(&both_ways("gather:plain-sign", "none"), 1));
    let mut median = both_ways("gather:plain-sign", "none");
    median.exchange.aggregator = "median".parse().expect("an aggregator");
    assert_eq!(ends(&vote, 3), ends(&median, 3));
}

#[test]
fn signum_without_momentum_is_the_vote() {
    let vote = "two-way:plain-sign,down=plain-sign";
    assert_eq!(ends(&both_ways(vote, "rank-momentum:0"), 3), ends(&both_ways(vote, "none"), 3));
    assert_ne!(ends(&both_ways(vote, "rank-momentum:0.5"), 3), ends(&both_ways(vote, "none"), 3));
}

/// Four ranks and dyadic numbers: sums and quarters are exact.
#[test]
fn nothing_lost_on_either_way_is_the_exact_mean() {
    let dense = ends(&Config::dense(), 4);
    for reducer in
        ["two-way:dense,down=dense", "two-way:dense,down=dense,server=2", "two-way:topk:1x,down=topk:1x,rounds=2"]
    {
        assert_eq!(ends(&both_ways(reducer, "none"), 4), dense, "{reducer}");
        assert_eq!(ends(&both_ways(reducer, "error"), 4), dense, "{reducer} with memories that stay empty");
    }
}

#[test]
fn one_bit_adam_that_warms_up_for_ever_is_a_dense_exchange() {
    let warm = both_ways("two-way:sign,down=sign", "one-bit-adam:6");
    assert_eq!(ends(&warm, 3), ends(&Config::dense(), 3));
    assert_ne!(ends(&both_ways("two-way:sign,down=sign", "one-bit-adam:5"), 3), ends(&Config::dense(), 3));
}

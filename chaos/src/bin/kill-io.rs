//! Kills a trainer at every system call on its files, and injects a failure into each call: `scripts/kill-io.sh`.

use std::process::ExitCode;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn main() -> ExitCode {
    kill_io::main()
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn main() -> ExitCode {
    eprintln!("error: this needs Linux on x86-64, whose registers it reads");
    ExitCode::from(77)
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod kill_io {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::PathBuf;
    use std::process::ExitCode;

    use anyhow::{Context, Result};
    use briquette_chaos::kill_io::{Bench, Case, End, Harm, Ranks, Scenario};
    use briquette_chaos::trace::REFUSED;
    use briquette_chaos::world::Programs;
    use clap::Parser;

    /// Kills a trainer at every system call on its files, before it and after it, and lets each fail with ENOSPC and EIO. Whatever
    /// happened, the run must come to its end without repair, with the bits of one that was left alone.
    #[derive(Debug, Parser)]
    struct Arguments {
        /// Only scenarios whose name has this in it: begin-threads, resume-processes, overwrite-threads, …
        #[arg(default_value = "")]
        only: String,
        /// Only one call in this many
        #[arg(long, default_value_t = 1)]
        every: usize,
        /// Beginning with this one
        #[arg(long, default_value_t = 0)]
        from: usize,
        /// Directory of briquette, cifar and ag-news; that of this program if absent
        #[arg(long, value_name = "DIR")]
        programs: Option<PathBuf>,
        /// Directory for runs
        #[arg(long, value_name = "DIR", default_value = "kill-io")]
        out: PathBuf,
    }

    pub(super) fn main() -> ExitCode {
        match run(&Arguments::parse()) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("error: {error:#}");
                ExitCode::from(if error.to_string() == REFUSED { 77 } else { 2 })
            }
        }
    }

    fn run(arguments: &Arguments) -> Result<bool> {
        let own = std::env::current_exe()?;
        let beside = own.parent().context("a program is in a directory")?;
        let programs = Programs::in_directory(arguments.programs.as_deref().unwrap_or(beside))?;
        fs::create_dir_all(&arguments.out)?;
        println!("scenario,ranks,harm,calls,ended by itself,resumed,begun,overwritten,lost,findings");
        let mut good = true;
        for (scenario, ranks) in Scenario::ALL.into_iter().flat_map(|s| Ranks::ALL.map(|r| (s, r))) {
            if !format!("{scenario:?}-{ranks:?}").to_lowercase().contains(&arguments.only) {
                continue;
            }
            let bench = Bench::new(&programs, &arguments.out, scenario, ranks)?;
            let calls = bench.calls()?;
            let mut kinds = BTreeMap::<&str, usize>::new();
            calls.iter().for_each(|call| *kinds.entry(call.name).or_default() += 1);
            eprintln!("{scenario:?}, {ranks:?}: {} calls {kinds:?}", calls.len());
            for harm in Harm::ALL {
                let mut cases = Vec::new();
                for number in (arguments.from..calls.len()).step_by(arguments.every) {
                    let Some(case) = bench.case(number, harm)? else { continue };
                    for finding in &case.findings {
                        eprintln!(
                            "FINDING {scenario:?} {ranks:?} call {number} {} {} {harm}: {finding}",
                            case.call.name, case.call.path
                        );
                    }
                    cases.push(case);
                }
                good &= cases.iter().all(|case| case.findings.is_empty());
                row(scenario, ranks, harm, &cases);
            }
        }
        Ok(good)
    }

    fn row(scenario: Scenario, ranks: Ranks, harm: Harm, cases: &[Case]) {
        let count = |end: End| cases.iter().filter(|case| case.end == end).count();
        let findings = cases.iter().filter(|case| !case.findings.is_empty()).count();
        println!(
            "{scenario:?},{ranks:?},{harm},{},{},{},{},{},{},{findings}",
            cases.len(),
            count(End::Itself),
            count(End::Resumed),
            count(End::Begun),
            count(End::Overwritten),
            count(End::Lost)
        );
    }
}

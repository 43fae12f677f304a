//! More ranks than the system can start threads for give an error, not a panic.
#![cfg(target_os = "linux")]

use std::env;
use std::process::Command;

use briquette_core::comm::Local;
use briquette_core::error::CommError;
use briquette_testkit::alone::name_of;

/// Environment variable that is set if the test runs under a limit.
const LIMITED: &str = "LIMITED";

#[test]
fn a_rank_for_which_no_thread_starts_stops_the_others() {
    if env::var_os(LIMITED).is_none() {
        // Stacks of 1 GiB in an address space of less than 6: a few threads start, and when no further one does there is still
        // room for everything else.
        let name = name_of(&a_rank_for_which_no_thread_starts_stops_the_others);
        let script = "ulimit -v 6100000 && exec $0 --exact $1 --nocapture";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(env::current_exe().unwrap()).arg(name).env(LIMITED, "");
        command.env("RUST_MIN_STACK", (1 << 30).to_string()).env("MALLOC_ARENA_MAX", "1");
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
        return;
    }
    let results = Local::run(20, |mut comm| {
        comm.barrier()?;
        Ok::<_, CommError>(())
    });
    let texts: Vec<String> = results.into_iter().map(|result| result.unwrap_err().to_string()).collect();
    let words = "the system starts no thread for it: ";
    assert!(texts.iter().all(|text| text.contains(words)), "{texts:?}");
}

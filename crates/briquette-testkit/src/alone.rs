//! Separate processes for tests in a binary with other tests.

use std::any::type_name;
use std::env;
use std::process::Command;

/// Variable that is set in a process that runs one test.
const ALONE: &str = "BRIQUETTE_TEST_ALONE";

/// Returns the name by which the test harness knows this test function.
pub fn name_of<Test>(_test: &Test) -> &'static str {
    type_name::<Test>().split_once("::").expect("a test is inside a crate").1
}

/// Runs the test function again in a process of its own, and returns `true` when it has passed there. In that process it
/// returns `false`: the test goes on.
///
/// # Panics
///
/// If the test fails in its process.
#[track_caller]
pub fn passes_alone<Test>(test: &Test) -> bool {
    if env::var_os(ALONE).is_some() {
        return false;
    }
    let program = env::current_exe().expect("a test has a program");
    let output = Command::new(program).args(["--exact", name_of(test), "--nocapture"]).env(ALONE, "").output();
    let output = output.expect("the test's program starts");
    let [said, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    // A name that matches no test would also succeed.
    assert!(output.status.success() && said.contains("1 passed"), "{}:\n{said}{errors}", name_of(test));
    true
}

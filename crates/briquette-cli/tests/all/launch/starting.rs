//! Environment of started ranks, and refusals before any is started.

use std::net::TcpListener;

use super::Place;

const TELL: &str = r#"echo "$RANK $WORLD_SIZE $LOCAL_RANK $MASTER_ADDR $MASTER_PORT $BRIQUETTE_RESTART" \
    "token=$BRIQUETTE_TOKEN file=$BRIQUETTE_TOKEN_FILE tls=$BRIQUETTE_TLS" > given-$RANK"#;

#[test]
fn each_rank_has_its_place_and_one_secret() {
    let place = Place::new(TELL);
    let left = place.launch("--ranks 3");
    assert_eq!(left.code, Some(0), "{left:?}");
    let given: Vec<String> = (0..3).map(|rank| place.read(&format!("given-{rank}"))).collect();
    let fields: Vec<Vec<&str>> = given.iter().map(|line| fields_of(line)).collect();
    for (rank, fields) in fields.iter().enumerate() {
        let number = rank.to_string();
        assert_eq!(fields[..4], [&*number, "3", &number, "127.0.0.1"], "{given:?}");
        assert!(fields[4].parse::<u16>().unwrap() > 0);
        assert_eq!(fields[5], "0");
        assert_eq!(fields[4..], fields_of(&given[0])[4..], "one port, one secret: {given:?}");
        assert_eq!(fields[6].len(), "token=".len() + 64);
        assert_eq!(fields[7..], ["file=", "tls="]);
    }
    place.launch("--ranks 3");
    assert_ne!(fields_of(&place.read("given-0"))[6], fields[0][6], "a new secret each time");
}

#[test]
fn every_launch_names_its_world_and_launchers_of_several_machines_alike() {
    let place = Place::new(r#"echo "world=$BRIQUETTE_WORLD agent=$TORCHELASTIC_USE_AGENT_STORE" > given-$RANK"#);
    secret(&place, "secret", "0123456789abcdef\n", 0o600);
    let given = |options: &str| {
        let mut command = place.command(&format!("launch {options} -- /bin/sh rank.sh"));
        // As where a script of another launcher starts this one.
        command.env_remove("BRIQUETTE_WORLD").env("TORCHELASTIC_USE_AGENT_STORE", "True");
        assert_eq!(place.spawn(&mut command).end().code, Some(0));
        place.read("given-0")
    };
    let [first, second] = [(); 2].map(|()| given("--ranks 2"));
    assert_eq!(first.len(), "world=launch/ agent=\n".len() + 16, "{first}");
    assert_eq!(place.read("given-1"), second, "one name for all ranks");
    assert_ne!(first, second, "and another for every launch");
    assert_eq!(given("--ranks 2 --world mine"), "world=mine agent=\n");
    let several = |nodes: &str, options: &str, program: &str| {
        let mut command = place.command("launch --dry-run --token-file secret");
        command.args(["--nodes", nodes]).args(options.split(' ')).arg("--").args(program.split(' '));
        let dry = place.spawn(&mut command).end().out;
        let name = dry.split(" BRIQUETTE_WORLD=").nth(1).and_then(|rest| rest.split(' ').next());
        name.unwrap_or_else(|| panic!("no BRIQUETTE_WORLD: {dry}")).to_owned()
    };
    let (nodes, program) = ("node-a,node-b", "/bin/sh rank.sh");
    let options = "--node-rank 0 --ranks 1 --port 29499";
    assert_eq!(several(nodes, &format!("{options} --world mine"), program), "mine");
    let derived = several(nodes, options, program);
    assert_eq!(derived.len(), "nodes/".len() + 32, "{derived}");
    secret(&place, "sh", "", 0o755);
    for (nodes, options, program) in [
        (nodes, "--node-rank 1 --ranks 1 --port 29499", program),
        ("node-a, node-b", options, program),
        (nodes, options, "./sh another.sh"),
    ] {
        assert_eq!(several(nodes, options, program), derived, "the same world: {nodes} {options} {program}");
    }
    for (nodes, options, program) in [
        ("node-a,node-c", options, program),
        ("node-b,node-a", options, program),
        (nodes, "--node-rank 0 --ranks 2 --port 29499", program),
        (nodes, "--node-rank 0 --ranks 1 --port 29498", program),
        (nodes, options, "/bin/cat rank.sh"),
    ] {
        assert_ne!(several(nodes, options, program), derived, "another world: {nodes} {options} {program}");
    }
    secret(&place, "secret", "another secret of sixteen\n", 0o600);
    assert_eq!(several(nodes, options, program), derived, "the token is no part of it");
}

/// Creates a file of this mode.
fn secret(place: &Place, name: &str, text: &str, mode: u32) {
    std::fs::write(place.path(name), text).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(place.path(name), mode).unwrap();
}

fn fields_of(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn ranks_on_the_second_node_continue_the_numbers() {
    let place = Place::new(TELL);
    secret(&place, "secret", "0123456789abcdef\n", 0o600);
    std::fs::create_dir(place.path("certs")).unwrap();
    ["ca.pem", "cert.pem", "key.pem"]
        .iter()
        .for_each(|file| std::fs::write(place.path("certs").join(file), "").unwrap());
    let options = "--nodes node-a,node-b --node-rank 1 --ranks 2 --port 29500 --token-file secret --tls certs";
    assert_eq!(place.launch(options).code, Some(0));
    // The script's working directory, as the system resolves it, is where the files are.
    let directory = std::path::absolute(place.path("")).unwrap();
    for (rank, local) in [(2, 0), (3, 1)] {
        let given = place.read(&format!("given-{rank}"));
        let given: Vec<&str> = given.split_whitespace().collect();
        assert_eq!(given[..7].join(" "), format!("{rank} 4 {local} node-a 29500 0 token="));
        for (field, name) in [(given[7], "secret"), (given[8], "certs")] {
            let path = std::path::Path::new(field.split_once('=').unwrap().1);
            assert!(path.is_absolute(), "{field}");
            assert_eq!(path.canonicalize().unwrap(), directory.join(name).canonicalize().unwrap());
        }
    }
}

#[test]
fn a_variable_of_a_launcher_around_this_one_is_not_passed_on() {
    let place = Place::new(TELL);
    let mut command = place.command("launch --ranks 1 -- /bin/sh rank.sh");
    command.envs([("BRIQUETTE_TOKEN_FILE", "old"), ("BRIQUETTE_TLS", "old"), ("RANK", "7")]);
    assert_eq!(place.spawn(&mut command).end().code, Some(0));
    let given = place.read("given-0");
    assert!(given.starts_with("0 1 0 ") && given.ends_with("file= tls=\n"), "{given}");
}

#[test]
fn what_cannot_be_started_is_refused_with_what_to_do() {
    let place = Place::new("touch started");
    secret(&place, "empty", "\n", 0o600);
    secret(&place, "short", "0123456789abcde\n", 0o600);
    secret(&place, "open", "0123456789abcdef\n", 0o644);
    std::fs::create_dir(place.path("dir")).unwrap();
    let nodes = "--nodes a,b --ranks 1 --port 29500";
    let script = "-- /bin/sh rank.sh";
    for (arguments, says) in [
        (format!("--ranks 0 {script}"), "--ranks"),
        (script.to_owned(), "--ranks"),
        ("--ranks 2".to_owned(), "PROGRAM"),
        ("--ranks 2 -- no-such-program-anywhere".to_owned(), "`no-such-program-anywhere` is not found in PATH"),
        ("--ranks 2 -- rank.sh".to_owned(), "`./rank.sh`"),
        ("--ranks 2 -- ./rank.sh".to_owned(), "chmod +x ./rank.sh"),
        ("--ranks 2 -- ./train".to_owned(), "`./train` does not exist"),
        ("--ranks 2 -- ./dir".to_owned(), "is a directory"),
        (format!("--ranks 2 --only-rank 2 {script}"), "--only-rank 2: the world has 2 ranks"),
        (format!("--ranks 2 --grace soon {script}"), "as in 500ms"),
        (format!("--ranks 2 --grace 1000000years {script}"), "at most 24h"),
        (format!("--ranks 2 --node-rank 0 {script}"), "--nodes"),
        (format!("--nodes a,b --ranks 1 --port 29500 {script}"), "--node-rank"),
        (format!("--nodes a,b --ranks 1 --node-rank 0 {script}"), "--port"),
        (format!("--nodes a, --ranks 1 --port 29500 --node-rank 0 {script}"), "--nodes has an empty name"),
        (format!("{nodes} --node-rank 2 {script}"), "--node-rank 2 is not one of the 2"),
        (format!("{nodes} --node-rank 0 {script}"), "briquette token > FILE"),
        (format!("{nodes} --node-rank 0 --token-file none {script}"), "briquette token > none"),
        (format!("{nodes} --node-rank 0 --token-file empty {script}"), "empty: it is empty"),
        (format!("{nodes} --node-rank 0 --token-file short {script}"), "short: the secret in it has 15 bytes"),
        (format!("{nodes} --node-rank 0 --token-file open {script}"), "open: every user of this machine can read"),
        (format!("--ranks 1 --tls dir {script}"), "briquette cert --out dir"),
    ] {
        let left = place.start_command(&arguments).end();
        assert_eq!(left.code, Some(2), "{arguments}: {left:?}");
        assert!(left.err.starts_with("error: ") && left.err.contains(says), "{arguments}: {}", left.err);
    }
    assert!(!place.path("started").exists());
}

#[test]
fn a_port_in_use_is_an_error_before_any_rank_starts() {
    let place = Place::new("touch started");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let left = place.launch(&format!("--ranks 2 --port {port}"));
    assert_eq!(left.code, Some(1), "{left:?}");
    assert!(left.err.contains(&format!("port {port}")) && left.err.contains("--port"), "{left:?}");
    assert!(!place.path("started").exists());
}

#[test]
fn a_program_the_system_cannot_run_says_so_as_its_rank() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new("");
    std::fs::write(place.path("damaged"), "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(place.path("damaged"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let left = place.start_command("--ranks 1 -- ./damaged").end();
    assert!(left.code.is_some_and(|code| code != 0), "{left:?}");
    assert!(left.err.contains("`./damaged` cannot be started"), "{left:?}");
}

#[test]
fn a_dry_run_prints_commands_and_starts_nothing() {
    let place = Place::new("touch started");
    let left = place.launch("--ranks 2 --dry-run");
    assert_eq!(left.code, Some(0), "{left:?}");
    let lines: Vec<&str> = left.out.lines().collect();
    assert_eq!(lines.len(), 2);
    for (rank, line) in lines.iter().enumerate() {
        let words = format!(
            "RANK={rank} WORLD_SIZE=2 LOCAL_RANK={rank} LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=<a free port>"
        );
        assert!(line.starts_with(&words) && line.ends_with(" /bin/sh rank.sh"), "{line}");
        assert!(line.contains(" GROUP_RANK=0 "), "{line}");
    }
    assert!(!place.path("started").exists());
}

/// Threat L1.
#[test]
fn tokens_are_32_random_bytes_as_text() {
    let place = Place::new("");
    let token = || place.spawn(&mut place.command("token")).end().out;
    let (one, other) = (token(), token());
    assert!(one.len() == 65 && one.ends_with('\n') && one.trim().chars().all(|c| c.is_ascii_hexdigit()), "{one}");
    assert_ne!(one, other);
}

#[test]
fn ranks_keep_their_memory_unless_an_allocator_was_chosen() {
    let place = Place::new(r#"echo "$MALLOC_ARENA_MAX/$MALLOC_MMAP_MAX_/$MALLOC_TRIM_THRESHOLD_" > given-$RANK"#);
    let given = |variables: &[(&str, &str)]| {
        let mut command = place.command("launch --ranks 1 -- /bin/sh rank.sh");
        for name in ["MALLOC_ARENA_MAX", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD"] {
            command.env_remove(name);
        }
        command.envs(variables.iter().copied());
        assert_eq!(place.spawn(&mut command).end().code, Some(0));
        place.read("given-0")
    };
    assert_eq!(given(&[]), "1/0/1099511627776\n");
    assert_eq!(given(&[("MALLOC_ARENA_MAX", "2")]), "2//\n");
    assert_eq!(given(&[("GLIBC_TUNABLES", "glibc.malloc.check=0")]), "//\n");
}

//! Launcher variables, and the environment read from them.

use super::*;

fn read(set: &[(&str, &str)]) -> Result<Option<Environment>, EnvironmentError> {
    Environment::read(|name| set.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()))
}

#[test]
fn what_is_written_is_read_again() {
    let written = Environment {
        rank: 1,
        world: 3,
        local_rank: 1,
        local_world: 2,
        node: Some(3),
        master: "node-a".into(),
        port: Some(4000),
        world_name: Some("job 7".into()),
        ports: Some(29_600..=29_699),
        join_deadline: Some(Duration::from_secs(90)),
        deadline: Some(Duration::from_millis(90_500)),
        token: Some("secret".into()),
        token_file: Some("token".into()),
        tls: Some("certs".into()),
        launch: Some("7d1f".into()),
        restart: 2,
        elastic: Some(Elastic { fewest: 2, members: vec!["host1:29501".into(), "host2:29502".into()], joins: true }),
    };
    let set = written.variables();
    let set: Vec<_> = set.iter().map(|(name, value)| (*name, value.as_str())).collect();
    assert_eq!(read(&set), Ok(Some(written)));
}

#[test]
fn ranks_of_a_machine_have_its_number_or_that_of_its_first_rank() {
    let rest = [("WORLD_SIZE", "8"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "7000"), ("RANK", "5")];
    let machine = |more: &[(&str, &str)]| read(&[&rest[..], more].concat()).unwrap().unwrap().machine();
    assert_eq!(machine(&[("LOCAL_RANK", "1"), ("GROUP_RANK", "2")]), 2);
    assert_eq!((machine(&[("LOCAL_RANK", "1")]), machine(&[])), (4, 5));
    let error = read(&[&rest[..], &[("GROUP_RANK", "x")]].concat()).unwrap_err().to_string();
    assert_eq!(error, "GROUP_RANK is `x`: a whole number is needed");
}

#[test]
fn a_rank_of_mpirun_has_its_place_and_must_be_told_where_rank_0_is_only_on_several_machines() {
    let set = [
        ("OMPI_COMM_WORLD_RANK", "2"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
        ("PMIX_NAMESPACE", "1031405569"),
    ];
    let here = read(&[&set[..], &[("OMPI_COMM_WORLD_LOCAL_SIZE", "4")]].concat()).unwrap().unwrap();
    assert_eq!((here.rank, here.world, here.master.as_str(), here.port), (2, 4, "127.0.0.1", None));
    let spread = [&set[..], &[("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]].concat();
    let text = read(&spread).unwrap_err().to_string();
    assert!(text.contains("MASTER_ADDR is not set") && text.contains("mpirun -x MASTER_ADDR"), "{text}");
    assert!(!text.contains("RANK is"), "{text}");
    let told = read(&[&spread[..], &[("MASTER_ADDR", "a"), ("MASTER_PORT", "7000")]].concat()).unwrap().unwrap();
    assert_eq!((told.rank, told.machine(), told.port), (2, 2, Some(7000)));
    assert_eq!(told.world_name, here.world_name);
    assert_eq!(read(&[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")]), Ok(None));
}

#[test]
fn a_rank_of_srun_has_its_place_without_any_option() {
    let set = [
        ("SLURM_PROCID", "3"),
        ("SLURM_STEP_NUM_TASKS", "5"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_NODEID", "1"),
        ("SLURM_STEP_TASKS_PER_NODE", "2(x2),1"),
        ("SLURM_STEP_NODELIST", "gpu[07-08,12]"),
        ("SLURM_JOB_ID", "41"),
        ("SLURM_STEP_ID", "0"),
    ];
    let rank = read(&set).unwrap().unwrap();
    assert_eq!((rank.rank, rank.world, rank.local_rank, rank.local_world, rank.node), (3, 5, 1, 2, Some(1)));
    assert_eq!((rank.master.as_str(), rank.port, rank.world_name.as_deref()), ("gpu07", None, Some("slurm/41/0")));
    // The same through PMI, which says less.
    let pmi = [&set[..], &[("PMI_RANK", "3"), ("PMI_SIZE", "5")]].concat();
    assert_eq!(read(&pmi), Ok(Some(rank)));
    let on_one = [&[("SLURM_NODEID", "0"), ("SLURM_STEP_TASKS_PER_NODE", "5")], &set[..]].concat();
    assert_eq!(read(&on_one).unwrap().unwrap().master, "127.0.0.1");
}

#[test]
fn every_launcher_names_its_world_by_the_job() {
    let name = |set: &[(&str, &str)]| read(set).unwrap().unwrap().world_name.unwrap();
    let ompi = |id: &'static str, place: &'static str| {
        name(&[
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("PMIX_NAMESPACE", id),
            ("OMPI_MCA_orte_hnp_uri", place),
        ])
    };
    // Its ids are short: two processes may have the same one, and then have different addresses.
    assert_ne!(ompi("7", "7.0;tcp://10.0.0.1:4000"), ompi("7", "7.0;tcp://10.0.0.1:4001"));
    assert_ne!(ompi("7", ""), ompi("8", ""));
    // Open MPI 5 in two containers: one host name, one process number.
    let five = |world: &str, variable: &str, port: u16| {
        let server = format!("prterun-box-7@0.0;tcp4://127.0.0.1:{port}");
        name(&[
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_SIZE", world),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("MASTER_ADDR", "box"),
            ("PMIX_NAMESPACE", "prterun-box-7@1"),
            (variable, server.as_str()),
        ])
    };
    for variable in ["PMIX_SERVER_URI51", "PMIX_SERVER_URI41", "PMIX_SERVER_URI2", "PMIX_SERVER_URI"] {
        assert_ne!(five("2", variable, 4000), five("2", variable, 4001), "{variable}");
        // With several machines, each has a separate server.
        assert_eq!(five("4", variable, 4000), five("4", variable, 4001), "{variable}");
    }
    let pmi = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2")];
    assert_eq!(name(&[&pmi[..], &[("PMI_JOBID", "9.0")]].concat()), "pmi/9.0");
    assert_eq!(name(&[&pmi[..], &[(job::PROXY, "77@123")]].concat()), "hydra/77@123");
    assert_eq!(name(&[&pmi[..], &[("BRIQUETTE_WORLD", "mine")]].concat()), "mine");
    let text = read(&pmi).unwrap_err().to_string();
    assert!(text.contains("mpirun gives this job no id") && text.contains("BRIQUETTE_WORLD"), "{text}");
    // With several machines, each has a separate process.
    let spread = [("PMI_RANK", "1"), ("PMI_SIZE", "4"), ("MPI_LOCALNRANKS", "2"), (job::PROXY, "77@123")];
    assert!(read(&spread).is_err());
}

#[test]
fn torchruns_port_is_its_agents_and_its_restarts_are_this_launchs() {
    let set = [
        ("RANK", "0"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "localhost"),
        ("MASTER_PORT", "29500"),
        ("TORCHELASTIC_RUN_ID", "none"),
        ("TORCHELASTIC_RESTART_COUNT", "2"),
        ("TORCHELASTIC_ERROR_FILE", "/tmp/torchelastic_k/none_3/attempt_2/0/error.json"),
    ];
    let own = read(&set).unwrap().unwrap();
    assert_eq!((own.port, own.restart), (Some(29500), 2));
    let agents = read(&[&set[..], &[("TORCHELASTIC_USE_AGENT_STORE", "True")]].concat()).unwrap().unwrap();
    assert_eq!((agents.port, agents.world_name.as_deref()), (None, Some("torchrun/none/29500")));
    let first =
        [&set[..6], &[("TORCHELASTIC_ERROR_FILE", "/tmp/torchelastic_k/none_3/attempt_0/0/error.json")]].concat();
    assert_eq!(read(&first).unwrap().unwrap().launch, own.launch);
    assert!(own.launch.unwrap().contains("none_3"));
}

#[test]
fn names_that_a_script_sets_within_a_job_keep_its_port() {
    let set = [
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "a"),
        ("MASTER_PORT", "7000"),
        ("SLURM_PROCID", "0"),
        ("SLURM_JOB_ID", "41"),
        ("SLURM_STEP_ID", "3"),
    ];
    let whole = read(&[&set[..], &[("SLURM_STEP_NUM_TASKS", "2")]].concat()).unwrap().unwrap();
    assert_eq!((whole.port, whole.world_name.as_deref()), (Some(7000), Some("slurm/41/3")));
    // Steps of one task each: every rank has a different one.
    let apart = read(&[&set[..], &[("SLURM_STEP_NUM_TASKS", "1")]].concat()).unwrap().unwrap();
    assert_eq!((apart.port, apart.world_name), (Some(7000), None));
}

#[test]
fn what_is_wrong_is_named() {
    let says = |set: &[(&str, &str)], words: &[&str]| {
        let text = read(set).unwrap_err().to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    };
    says(&[("RANK", "0")], &["WORLD_SIZE", "not set"]);
    says(&[("RANK", "x"), ("WORLD_SIZE", "2")], &["RANK", "`x`"]);
    says(&[("RANK", "2"), ("WORLD_SIZE", "2")], &["RANK", "2 of 2"]);
    let rest = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "70000")];
    says(&rest, &["MASTER_PORT", "70000", "65535"]);
    let again = [&rest[..3], &[("MASTER_PORT", "7000"), ("BRIQUETTE_RESTART", "1")]].concat();
    says(&again, &["BRIQUETTE_RESTART is 1", "BRIQUETTE_LAUNCH is not set"]);
    let rest = [&rest[..3], &[("MASTER_PORT", "7000")]].concat();
    let and = |name, value| [&rest[..], &[(name, value)]].concat();
    says(&and("BRIQUETTE_PORTS", "9-7"), &["BRIQUETTE_PORTS is `9-7`", "29600-29699"]);
    says(&and("BRIQUETTE_JOIN_DEADLINE", "0s"), &["BRIQUETTE_JOIN_DEADLINE is `0s`", "more than nothing"]);
    says(&and("BRIQUETTE_DEADLINE", "soon"), &["BRIQUETTE_DEADLINE is `soon`", "5m"]);
}

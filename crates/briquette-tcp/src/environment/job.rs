//! Places of ranks and job ids, from the variables of torchrun, `mpirun` and `srun`.
//!
//! A job id must be the same on all ranks of a job, and differ from that of any other job that runs at the same time.
//! It is therefore derived only from values that the launcher gives to every rank of a job. Values of one machine are
//! included only if the job has no other machine. Values of one rank are never included.

use super::{EnvironmentError, names};

/// Name of a pseudo-variable: the process of MPICH's launcher on this machine that started this rank.
pub(super) const PROXY: &str = "(process of hydra_pmi_proxy)";

/// Address of this machine's PMIx server, which has a separate port for each `mpirun`. A server sets several of these
/// variables to the same value; newest first, as in PMIx's own order.
const PMIX_SERVER: [&str; 8] = [
    "PMIX_SERVER_URI61",
    "PMIX_SERVER_URI51",
    "PMIX_SERVER_URI41",
    "PMIX_SERVER_URI4",
    "PMIX_SERVER_URI3",
    "PMIX_SERVER_URI2",
    "PMIX_SERVER_URI21",
    "PMIX_SERVER_URI",
];

/// A launcher that sets other variable names than torchrun's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Launcher {
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// MPICH's `mpirun` and related launchers, and `srun` with PMI.
    Pmi,
    /// `srun`.
    Slurm,
}

/// Names of the variables for rank, number of ranks, rank on the machine, and ranks on the machine.
const OF: [(Launcher, [&str; 4]); 3] = [
    (
        Launcher::OpenMpi,
        ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"],
    ),
    (Launcher::Pmi, ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"]),
    // A job's own shell has these Slurm variables too, except the number of tasks of a step.
    (Launcher::Slurm, ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"]),
];

impl Launcher {
    fn names(self) -> [&'static str; 4] {
        OF.iter().find(|(launcher, _)| *launcher == self).map(|(_, names)| *names).unwrap_or_default()
    }

    /// Returns its program name, for errors.
    pub(super) fn program(self) -> &'static str {
        match self {
            Launcher::OpenMpi | Launcher::Pmi => "mpirun",
            Launcher::Slurm => "srun",
        }
    }
}

/// Returns the launcher that started this process as one rank of several, or `None` for a world of one rank.
pub(super) fn launcher(lookup: &impl Fn(&str) -> Option<String>) -> Option<Launcher> {
    let (launcher, names) = OF.into_iter().find(|(_, names)| lookup(names[0]).is_some())?;
    let slurm = Launcher::Slurm.names();
    // `srun` may also set PMI's variables, but its own contain more information.
    let is_slurm = launcher == Launcher::Pmi
        && lookup(names[0]) == lookup(slurm[0])
        && lookup(names[1]) == lookup(slurm[1])
        && lookup(names[3]).is_none();
    let launcher = if is_slurm { Launcher::Slurm } else { launcher };
    lookup(launcher.names()[1]).filter(|world| world != "1").map(|_| launcher)
}

/// Returns the value of an unset torchrun variable, derived from the variables of another launcher.
pub(super) fn place(lookup: &impl Fn(&str) -> Option<String>, name: &str) -> Option<String> {
    let launcher = launcher(lookup)?;
    let own = launcher.names();
    let world = lookup(own[1])?;
    match name {
        names::RANK => lookup(own[0]),
        names::WORLD_SIZE => Some(world),
        names::LOCAL_RANK => lookup(own[2]),
        names::LOCAL_WORLD_SIZE => local_world(launcher, lookup),
        names::GROUP_RANK if launcher == Launcher::Slurm => lookup("SLURM_NODEID"),
        // All ranks are on one machine, so rank 0's address is not needed.
        names::MASTER_ADDR if local_world(launcher, lookup).as_ref() == Some(&world) => Some("127.0.0.1".to_owned()),
        // Slurm puts the first task on the first node of the list.
        names::MASTER_ADDR if launcher == Launcher::Slurm => first_host(&lookup("SLURM_STEP_NODELIST")?),
        _ => None,
    }
}

/// Returns the number of ranks on the machine.
fn local_world(launcher: Launcher, lookup: &impl Fn(&str) -> Option<String>) -> Option<String> {
    if launcher == Launcher::Slurm {
        // Set for every step. The variable below is set only with --ntasks-per-node, and is then a maximum.
        let each = lookup("SLURM_STEP_TASKS_PER_NODE").and_then(|text| tasks_per_node(&text));
        let node = lookup("SLURM_NODEID").and_then(|node| node.trim().parse::<usize>().ok());
        if let (Some(each), Some(node)) = (each, node) {
            return each.get(node).map(ToString::to_string);
        }
    }
    lookup(launcher.names()[3]).filter(|world| world.parse::<usize>().is_ok())
}

/// Parses `2(x3),1` as 2, 2, 2, 1.
fn tasks_per_node(text: &str) -> Option<Vec<usize>> {
    let mut each = Vec::new();
    for part in text.trim().split(',') {
        let (tasks, times) = match part.split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        // No cluster has more machines than this.
        if times > 1 << 20 || each.len() > 1 << 20 {
            return None;
        }
        each.extend(std::iter::repeat_n(tasks.parse::<usize>().ok()?, times));
    }
    Some(each)
}

/// Returns the first name of Slurm's host list: `node03` of `node[03-05,9],gpu1`.
fn first_host(list: &str) -> Option<String> {
    let list = list.trim();
    let end = list.find([',', '[']).unwrap_or(list.len());
    let mut host = list[..end].to_owned();
    let mut rest = &list[end..];
    // A name may have several lists of numbers.
    while let Some(numbers) = rest.strip_prefix('[') {
        let (numbers, after) = numbers.split_once(']')?;
        host += numbers.split([',', '-']).next()?;
        let end = after.find([',', '[']).unwrap_or(after.len());
        host += &after[..end];
        rest = &after[end..];
    }
    (!host.is_empty()).then_some(host)
}

/// Returns the name of this process's world, derived from its job id.
///
/// # Errors
/// [`EnvironmentError::Unnamed`] if the launcher gives its job no id.
pub(super) fn world_name(lookup: &impl Fn(&str) -> Option<String>) -> Result<Option<String>, EnvironmentError> {
    let set = |name: &str| lookup(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
    if let Some(name) = set(names::WORLD) {
        return Ok(Some(name));
    }
    if let (Some(id), Some(port)) = (set("TORCHELASTIC_RUN_ID"), set(names::MASTER_PORT)) {
        // The id is `none` unless one was given. The port belongs to this job's agents, and to no other job on their
        // machine.
        return Ok(Some(format!("torchrun/{id}/{port}")));
    }
    let Some(launcher) = launcher(lookup) else { return Ok(None) };
    let is_ours = set(names::WORLD_SIZE).is_none_or(|world| Some(world) == set(launcher.names()[1]));
    if !is_ours {
        // A script created several worlds within the job.
        return Ok(None);
    }
    let slurm = || Some(format!("slurm/{}/{}", set("SLURM_JOB_ID")?, set("SLURM_STEP_ID")?));
    let is_one_machine = set(launcher.names()[3]) == set(launcher.names()[1]);
    let pmix = || {
        // In Open MPI 4 the id is 16 bits of a hash. In Open MPI 5 it is a host name with a process number, which two containers may
        // share. Together with the address of `mpirun` itself it is unique to one job. Open MPI 5 provides that address on one
        // machine only.
        let place = set("OMPI_MCA_orte_hnp_uri").or_else(|| {
            let server = PMIX_SERVER.into_iter().find_map(set);
            server.filter(|_| is_one_machine)
        });
        let place = place.unwrap_or_default();
        let id = set("PMIX_NAMESPACE").or_else(|| set("OMPI_MCA_ess_base_jobid"));
        id.map(|id| format!("mpirun/{id}/{place}"))
    };
    let name = match launcher {
        Launcher::OpenMpi => pmix(),
        Launcher::Slurm => slurm(),
        Launcher::Pmi => set("PMI_JOBID").map(|id| format!("pmi/{id}")).or_else(pmix).or_else(|| {
            // There is one launcher process per machine and job, which is usable if there is only one machine.
            set(PROXY).filter(|_| is_one_machine).map(|process| format!("hydra/{process}"))
        }),
    };
    // If torchrun's variables were set by hand, the port was chosen for this job.
    match name {
        None if set(names::RANK).is_none() => Err(EnvironmentError::Unnamed { launcher: launcher.program() }),
        name => Ok(name),
    }
}

/// Returns an id of this start of torchrun, including its restarts: the directory of error files that the agent creates
/// for each start. If there are several machines, each agent has its own.
pub(super) fn torchrun_launch(lookup: &impl Fn(&str) -> Option<String>) -> Option<String> {
    let file = lookup("TORCHELASTIC_ERROR_FILE")?;
    let (directory, _) = file.split_once("/attempt_")?;
    Some(format!("torchrun{}", directory.replace('/', "-"))).filter(|_| !directory.is_empty())
}

/// Returns the process of MPICH that started this one, directly or indirectly, as `PID@START`. The PID of a finished
/// process may be reused, but with another start time.
#[cfg(target_os = "linux")]
pub(super) fn proxy() -> Option<String> {
    let mut process = std::process::id();
    // Shells and other wrappers may be in between.
    for _ in 0..64 {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The program's name, in parentheses, may contain any characters.
        let (head, tail) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
        if head.ends_with("(hydra_pmi_proxy") || head.ends_with("(pmi_proxy") {
            return Some(format!("{process}@{}", fields.get(19)?));
        }
        process = fields.get(1)?.parse().ok().filter(|parent| *parent > 1)?;
    }
    None
}

#[cfg(not(target_os = "linux"))]
pub(super) fn proxy() -> Option<String> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_slurm_are_read() {
        assert_eq!(tasks_per_node("2(x3),1"), Some(vec![2, 2, 2, 1]));
        assert_eq!(tasks_per_node("4"), Some(vec![4]));
        assert_eq!(tasks_per_node("x"), None);
        for (list, first) in [
            ("node[03-05,9],gpu1", "node03"),
            ("node7", "node7"),
            ("a,b", "a"),
            ("rack[1-2]n[4,6]-ib,x", "rack1n4-ib"),
            ("gpu[12]", "gpu12"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(first), "{list}");
        }
        assert_eq!((first_host(""), first_host("node[1")), (None, None));
    }
}

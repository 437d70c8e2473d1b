//! Requests and replies: one JSON object per line.

use serde::{Deserialize, Serialize};

use crate::network::OutboundSpec;

#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    Launch {
        id: u64,
        spec: Box<LaunchSpec>,
    },
    /// Makes a sandbox up to where it becomes somebody's: see `park`.
    Prepare {
        id: u64,
        spec: Box<LaunchSpec>,
    },
    /// Makes one that was prepared somebody's.
    Claim {
        id: u64,
        spec: ClaimSpec,
    },
    Destroy {
        id: u64,
        spec: DestroySpec,
    },
    /// Copies an image's root file system into a range of ids.
    Shift {
        id: u64,
        spec: ShiftSpec,
    },
    /// Hands the open files of a command's own control group to the agent.
    Lend {
        id: u64,
        spec: LendSpec,
    },
    /// Gives a sandbox its network again, or a container its first.
    Attach {
        id: u64,
        spec: AttachSpec,
    },
    /// Ends what carries the network of a container.
    Detach {
        id: u64,
        spec: DetachSpec,
    },
    /// Gives a container its host name.
    Name {
        id: u64,
        spec: NameSpec,
    },
}

/// Everything a sandbox is made from. Paths are absolute paths of the host.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchSpec {
    /// The runtime's own directory; made by the launcher.
    pub dir: String,
    /// Written to `runtime.json` before anything exists that needs undoing.
    pub record: serde_json::Value,
    pub agent: String,
    pub root: RootSpec,
    pub ids: IdsSpec,
    pub hostname: String,
    pub network: Network,
    /// How it gets out, in network mode `outbound`.
    #[serde(default)]
    pub outbound: Option<OutboundSpec>,
    pub cgroup: Option<CgroupSpec>,
    pub limits: Limits,
    /// Names of the capabilities commands may get beyond the agent's own six.
    #[serde(default)]
    pub added_caps: Vec<String>,
    #[serde(default)]
    pub disk: DiskSpec,
    /// /proc is mounted from outside of the user namespace, which the kernel asks for where the service's own /proc has
    /// places covered, as in containers. Rooted only.
    #[serde(default)]
    pub proc_outside: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClaimSpec {
    /// The directory it was prepared in.
    pub prepared: String,
    /// The runtime's own from now on.
    pub dir: String,
    /// Takes the place of the one that was written when it was prepared.
    pub record: serde_json::Value,
    /// What says to other services of the machine whose its ids are; none where nobody tells them.
    pub range: Option<RangeLink>,
    pub owned: Owned,
}

/// A link that is there, and where it is to lead from now on.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RangeLink {
    pub link: String,
    pub target: String,
}

/// What a sandbox has only once it is somebody's.
#[derive(Deserialize, Serialize, Clone)]
#[serde(deny_unknown_fields)]
pub struct Owned {
    pub hostname: String,
    pub limits: Limits,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum RootSpec {
    /// The machine's own programs below a made-up root.
    Host {
        skeleton: String,
        /// The root is a copy of the skeleton: for file systems that overlays do not take. Rooted only.
        #[serde(default)]
        copy: bool,
    },
    /// A root file system shared read-only.
    Image {
        rootfs: String,
        /// Its files belong to the sandbox's ids already: see the operation `shift`. Rooted only.
        #[serde(default)]
        shifted: bool,
    },
}

#[derive(Deserialize, Serialize, Clone, Debug)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum IdsSpec {
    /// A rooted service: uids and gids `base..base+count` of the host.
    Range { base: u32, count: u32 },
    /// Unprivileged: the service's own uid and gid are root inside, and nothing else exists.
    Single,
    /// Unprivileged with `newuidmap`: own uid and gid as root, then a range of /etc/subuid and /etc/subgid.
    Subids { uid_start: u32, gid_start: u32, count: u32 },
}

#[derive(Deserialize, PartialEq, Clone, Copy)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    None,
    Outbound,
    Host,
}

#[derive(Deserialize, Serialize, Clone)]
#[serde(deny_unknown_fields)]
pub struct CgroupSpec {
    pub version: u8,
    /// v2: one directory. v1: one for each controller, by controller.
    pub dirs: Vec<CgroupDir>,
}

#[derive(Deserialize, Serialize, Clone)]
#[serde(deny_unknown_fields)]
pub struct CgroupDir {
    /// `unified`, `memory`, `cpu`, `cpuacct` or `pids`.
    pub controller: String,
    /// The sandbox's own directory; its parent exists.
    pub path: String,
}

#[derive(Deserialize, Serialize, Clone, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    pub memory_mb: u64,
    pub vcpus: f64,
    pub pids: u64,
    /// Whether the agent puts commands into a group of their own (`--exec-cgroup-fd`).
    #[serde(default)]
    pub exec_group: bool,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub struct DiskSpec {
    /// A preformatted ext4 image: a copy of it becomes the writable layer. Rooted only.
    #[serde(default)]
    pub template: Option<String>,
    /// Size of a tmpfs that becomes the writable layer.
    #[serde(default)]
    pub tmpfs_mb: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DestroySpec {
    pub dir: String,
    /// Where directories are renamed to before they are deleted.
    pub trash: String,
    #[serde(default)]
    pub cgroup: Option<CgroupSpec>,
    #[serde(default)]
    pub ids: Option<IdsSpec>,
}

/// A control group that exists, for the agent at a socket to start a command in.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LendSpec {
    /// The runtime's directory.
    pub dir: String,
    pub token: String,
    pub exec_id: String,
    /// Files that a process joins the group by.
    pub join: Vec<String>,
    /// Files that count its memory kills.
    pub kills: Vec<String>,
    /// Files that tell whether its limit of memory was met.
    pub met: Vec<String>,
}

/// A sandbox that runs and has, or had, a network.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttachSpec {
    /// The runtime's directory.
    pub dir: String,
    pub ids: IdsSpec,
    pub cgroup: Option<CgroupSpec>,
    pub outbound: OutboundSpec,
    /// Set when an engine made the sandbox: its groups are the engine's, and `cgroup` is for its network alone.
    #[serde(default)]
    pub container: Option<ContainerSpec>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContainerSpec {
    /// What its engine calls it: 64 hexadecimal digits.
    pub id: String,
    /// Its first process, as its engine knows it.
    pub pid: i32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NameSpec {
    pub container: ContainerSpec,
    pub hostname: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DetachSpec {
    /// The runtime's directory.
    pub dir: String,
    pub cgroup: Option<CgroupSpec>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShiftSpec {
    pub from: String,
    /// Appears when it is complete.
    pub to: String,
    pub base: u32,
    pub count: u32,
}

/// `process.json`: who is PID 1 of the sandbox. Both together name a process for good.
#[derive(Serialize, Deserialize)]
pub struct ProcessRecord {
    pub pid: i32,
    /// Field 22 of /proc/<pid>/stat, clock ticks since boot.
    pub start_time: u64,
    /// Boot id: after a restart of the machine nothing of this is alive.
    pub boot_id: String,
}

#[derive(Serialize)]
pub struct Reply<'a> {
    pub id: u64,
    pub ok: bool,
    /// No answer yet: the socket of the agent to come takes connections.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub listening: bool,
    /// Who was to answer has ended: how far the request got nobody knows.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unanswered: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errno: Option<i32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<(&'static str, u64)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_service_says_in_its_tests_is_taken_here() {
        let path = format!("{}/../fixtures/launch.json", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).expect("the fixture");
        let fixture: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let mut taken = 0;
        for request in ["launches", "prepares", "claims", "destroys", "shifts", "attaches", "detaches", "names"]
            .iter()
            .flat_map(|kind| fixture[*kind].as_array().expect("a list"))
        {
            match serde_json::from_str::<Request>(&request.to_string()) {
                Ok(
                    Request::Launch { id, .. }
                    | Request::Prepare { id, .. }
                    | Request::Claim { id, .. }
                    | Request::Destroy { id, .. }
                    | Request::Shift { id, .. }
                    | Request::Lend { id, .. }
                    | Request::Attach { id, .. }
                    | Request::Detach { id, .. }
                    | Request::Name { id, .. },
                ) => {
                    assert_eq!(request["id"], id)
                }
                Err(error) => panic!("{request}: {error}"),
            }
            taken += 1;
        }
        assert_eq!(taken, 14);
        let mut unknown = fixture["launches"][0].clone();
        unknown["spec"]["more"] = true.into();
        assert!(serde_json::from_str::<Request>(&unknown.to_string()).is_err());
    }
}

//! Which engines a machine has.
//!
//! In: the policy, the environment, the file system. Out: sockets in the order of preference. An engine that is installed but not
//! running counts: at boot the agent may start first.

use std::{
    env, fmt,
    path::{Path, PathBuf},
};

use herdlet_api_types::driver::{EngineChoice, PODMAN};
use serde::{Deserialize, Serialize};

use crate::policy::Policy;

const DOCKER_SOCKET: &str = "/var/run/docker.sock";
const PODMAN_SOCKET: &str = "/run/podman/podman.sock";
/// Where packages install daemons.
const PROGRAM_DIRS: [&str; 4] = ["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"];

/// The kind of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Docker,
    Podman,
}

/// Where an engine listens.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) kind: Kind,
    pub(crate) socket: PathBuf,
}

impl Place {
    /// Whether its daemon is installed. Podman's is a service of its client, which many have for other reasons.
    pub(crate) fn is_installed(&self, exists: &dyn Fn(&Path) -> bool) -> bool {
        self.kind == Kind::Docker && is_installed("dockerd", exists)
    }
}

fn is_installed(program: &str, exists: &dyn Fn(&Path) -> bool) -> bool {
    PROGRAM_DIRS.iter().any(|dir| exists(&Path::new(dir).join(program)))
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.kind {
            Kind::Docker => "Docker",
            Kind::Podman => "Podman",
        };
        write!(f, "{name} at {}", self.socket.display())
    }
}

/// The place to use: a socket that the config names, otherwise the first engine that is installed.
pub(crate) fn candidates(driver: &str, policy: &Policy) -> Place {
    let hosts = Hosts { docker: env::var("DOCKER_HOST").ok(), podman: env::var("CONTAINER_HOST").ok() };
    candidates_in(driver, policy, &|path| path.exists(), &hosts)
}

/// Whether new allocations use the engine in the agent: the config names it, or there is no other.
pub(crate) fn uses_builtin(policy: &Policy) -> bool {
    match policy.engine {
        EngineChoice::Builtin => true,
        EngineChoice::Docker | EngineChoice::Podman => false,
        EngineChoice::Auto => {
            let is_named = policy.socket.is_some() || env::var_os("DOCKER_HOST").is_some();
            let exists = |path: &Path| path.exists();
            let sockets = [DOCKER_SOCKET, PODMAN_SOCKET].map(Path::new);
            let programs = ["dockerd", "podman"];
            !is_named
                && !sockets.into_iter().any(exists)
                && !programs.into_iter().any(|program| is_installed(program, &exists))
        }
    }
}

/// The addresses that the engines' own clients use, from the environment.
#[derive(Debug, Default)]
struct Hosts {
    docker: Option<String>,
    podman: Option<String>,
}

/// The path of a Unix socket's address.
fn socket_of(host: Option<&str>) -> Option<PathBuf> {
    host.and_then(|host| host.strip_prefix("unix://")).map(PathBuf::from)
}

fn candidates_in(driver: &str, policy: &Policy, exists: &dyn Fn(&Path) -> bool, hosts: &Hosts) -> Place {
    let wanted = if driver == PODMAN { EngineChoice::Podman } else { policy.engine };
    let place = |kind, host: &Option<String>, usual: &str| Place {
        kind,
        socket: policy.socket.clone().or_else(|| socket_of(host.as_deref())).unwrap_or_else(|| usual.into()),
    };
    let docker = || place(Kind::Docker, &hosts.docker, DOCKER_SOCKET);
    let podman = || place(Kind::Podman, &hosts.podman, PODMAN_SOCKET);
    match wanted {
        // Attempts of an earlier choice have engines of their own.
        EngineChoice::Docker | EngineChoice::Builtin => docker(),
        EngineChoice::Podman => podman(),
        EngineChoice::Auto
            if policy.socket.is_some() || exists(&docker().socket) || is_installed("dockerd", exists) =>
        {
            docker()
        }
        EngineChoice::Auto if exists(&podman().socket) || is_installed("podman", exists) => podman(),
        EngineChoice::Auto => docker(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Mode;

    fn of(driver: &str, options: serde_json::Value, files: &[&str], host: Option<&str>) -> Place {
        let policy = Policy::of(&serde_json::from_value(options).unwrap(), Mode::Node).unwrap();
        let hosts =
            Hosts { docker: host.map(str::to_owned), podman: host.map(|host| format!("{host}-podman")) };
        candidates_in(driver, &policy, &|path| files.iter().any(|file| Path::new(file) == path), &hosts)
    }

    #[test]
    fn an_installed_engine_is_waited_for() {
        let json = |text: &str| serde_json::from_str(text).unwrap();
        let both = ["/usr/sbin/dockerd", PODMAN_SOCKET];
        assert_eq!(of("docker", json("{}"), &both, None).kind, Kind::Docker);
        assert_eq!(of("docker", json("{}"), &[PODMAN_SOCKET], None).kind, Kind::Podman);
        // Podman alone is waited for, too; beside Docker it is not.
        let podman = "/usr/bin/podman";
        assert_eq!(of("docker", json("{}"), &[podman], None).socket, Path::new(PODMAN_SOCKET));
        for docker in ["/usr/sbin/dockerd", DOCKER_SOCKET] {
            assert_eq!(of("docker", json("{}"), &[podman, docker], None).kind, Kind::Docker);
        }
        assert_eq!(of("docker", json("{}"), &[], None).socket, Path::new(DOCKER_SOCKET));
        assert_eq!(of("podman", json("{}"), &both, None).socket, Path::new(PODMAN_SOCKET));
        assert_eq!(of("docker", json("{\"engine\": \"podman\"}"), &both, None).kind, Kind::Podman);
        assert_eq!(of("docker", json("{}"), &both, Some("unix:///x")).socket, Path::new("/x"));
        assert_eq!(of("podman", json("{}"), &both, Some("unix:///x")).socket, Path::new("/x-podman"));
        let named = of("docker", json("{\"endpoint\": \"unix:///y\"}"), &both, Some("unix:///x"));
        assert_eq!(named.socket, Path::new("/y"));
    }
}

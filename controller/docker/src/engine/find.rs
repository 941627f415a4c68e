//! Which engines a machine has.
//!
//! In: the policy, the environment, the file system. Out: sockets in the order of preference. An engine that is installed but not
//! running counts: at boot the agent may start first.

use std::{
    env, fmt,
    path::{Path, PathBuf},
};

use herdlet_api_types::driver::{DOCKER, EngineChoice, PODMAN};
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

/// The daemon to use: at a socket that the config names, otherwise the first one that is installed.
pub(crate) fn candidates(driver: &str, policy: &Policy) -> Place {
    daemon_of(choice_in(driver, policy, &|path| path.exists(), &Hosts::of_environment()))
}

/// Attempts of an earlier choice have engines of their own.
fn daemon_of(choice: Choice) -> Place {
    match choice {
        Choice::Daemon(place) | Choice::Builtin { otherwise: place } => place,
    }
}

/// Whether new allocations of the driver `docker` use the engine in the agent: the config names it, or there is no other.
pub(crate) fn uses_builtin(policy: &Policy) -> bool {
    let choice = choice_in(DOCKER, policy, &|path| path.exists(), &Hosts::of_environment());
    matches!(choice, Choice::Builtin { .. })
}

/// The engine of new allocations.
#[derive(Debug, PartialEq, Eq)]
enum Choice {
    Daemon(Place),
    /// The one in the agent; otherwise this daemon would be used.
    Builtin {
        otherwise: Place,
    },
}

/// The addresses that the engines' own clients use, from the environment.
#[derive(Debug, Default)]
struct Hosts {
    docker: Option<String>,
    podman: Option<String>,
}

impl Hosts {
    fn of_environment() -> Self {
        Self { docker: env::var("DOCKER_HOST").ok(), podman: env::var("CONTAINER_HOST").ok() }
    }
}

/// The path of a Unix socket's address.
fn socket_of(host: Option<&str>) -> Option<PathBuf> {
    host.and_then(|host| host.strip_prefix("unix://")).map(PathBuf::from)
}

fn choice_in(driver: &str, policy: &Policy, exists: &dyn Fn(&Path) -> bool, hosts: &Hosts) -> Choice {
    let wanted = if driver == PODMAN { EngineChoice::Podman } else { policy.engine };
    let place = |kind, host: &Option<String>, usual: &str| Place {
        kind,
        socket: policy.socket.clone().or_else(|| socket_of(host.as_deref())).unwrap_or_else(|| usual.into()),
    };
    let docker = || place(Kind::Docker, &hosts.docker, DOCKER_SOCKET);
    let podman = || place(Kind::Podman, &hosts.podman, PODMAN_SOCKET);
    let has = |host: &Option<String>, place: Place, program: &str| {
        host.is_some() || exists(&place.socket) || is_installed(program, exists)
    };
    match wanted {
        EngineChoice::Builtin => Choice::Builtin { otherwise: docker() },
        EngineChoice::Docker => Choice::Daemon(docker()),
        EngineChoice::Podman => Choice::Daemon(podman()),
        EngineChoice::Auto if policy.socket.is_some() || has(&hosts.docker, docker(), "dockerd") => {
            Choice::Daemon(docker())
        }
        EngineChoice::Auto if has(&hosts.podman, podman(), "podman") => Choice::Daemon(podman()),
        EngineChoice::Auto => Choice::Builtin { otherwise: docker() },
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
        daemon_of(choice_in(
            driver,
            &policy,
            &|path| files.iter().any(|file| Path::new(file) == path),
            &hosts,
        ))
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

    #[test]
    fn the_engine_in_the_agent_is_the_last_choice() {
        let is_builtin = |options: &str, file: &str, hosts: Hosts| {
            let options = serde_json::from_str(options).unwrap();
            let policy = Policy::of(&options, Mode::Node).unwrap();
            let choice = choice_in(DOCKER, &policy, &|path| Path::new(file) == path, &hosts);
            matches!(choice, Choice::Builtin { .. })
        };
        assert!(is_builtin("{}", "", Hosts::default()));
        assert!(is_builtin("{\"engine\": \"builtin\"}", DOCKER_SOCKET, Hosts::default()));
        for file in [DOCKER_SOCKET, PODMAN_SOCKET, "/usr/bin/dockerd", "/usr/bin/podman"] {
            assert!(!is_builtin("{}", file, Hosts::default()), "{file}");
        }
        assert!(!is_builtin("{\"endpoint\": \"unix:///y\"}", "", Hosts::default()));
        // The address of Podman's own clients was not an engine.
        assert!(!is_builtin("{}", "", Hosts { podman: Some("unix:///x".into()), docker: None }));
        assert!(!is_builtin("{}", "", Hosts { docker: Some("tcp://x".into()), podman: None }));
    }
}

//! Tasks as containers of Docker and Podman: the drivers `docker` and `podman`.
//!
//! In: attempts, the drivers' options, an engine's socket. Out: containers, their exits, logs and statistics. Docker and Podman are used
//! through Docker's API; on a machine without them, containers are processes. It does not depend on the planner, and nothing here decides what runs.
//!
//! | part | contents |
//! | --- | --- |
//! | `config` | the tasks' `config` of both drivers, as one type |
//! | `policy` | the drivers' options, resolved |
//! | `check` | the check of a task's `config` in a job file |
//! | `create` | a task as the engine's request to create a container |
//! | `auth`, `images` | credentials of registries, pulls |
//! | `engine` | finding an engine, connecting to it, its state |
//! | `files`, `pins` | files of tasks; mounts of their paths for the engine |
//! | `processes` | the processes of a container, by their cgroup |
//! | `pause` | the container through which Docker's containers join the network of their group |
//! | `names`, `records`, `used` | names and labels of containers; the record of each attempt; images that tasks have used |
//! | `logs` | copying the engine's log files into the task's |
//! | `report` | what `herdlet doctor` shows of an engine |
//! | `runs` | attempts that this agent supervises |
//! | `driver` | the contract of drivers over an engine's API |
//! | `builtin` | containers without an engine, as processes of the agent's supervisors |
//! | `dispatch` | the driver `docker` over both |

mod auth;
mod builtin;
mod check;
mod config;
mod create;
mod dispatch;
mod driver;
mod engine;
mod exec;
mod failure;
mod files;
mod images;
mod logs;
mod names;
mod pause;
mod pins;
mod policy;
mod processes;
mod pulls;
mod records;
mod report;
mod runs;
mod stats;
mod used;

pub use builtin::{ContainerNetworks, ContainerSetup};
pub use check::checked;
pub use dispatch::DockerDriver;
pub use driver::{Containers, Setup};
pub use names::Naming;
pub use policy::Mode;
pub use report::{EngineReport, has_engine, report, runs_without_engine};

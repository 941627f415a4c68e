//! The agent's side of the supervisor (shim): starts attempts, reads their records, finds and ends processes.
//!
//! In: an invocation (program, arguments, environment, ids, cgroups) and directories. Out: a running shim, later its
//! record. It knows no allocations, restart policies or reasons for a start; the caller passes the names.
//!
//! | file | what |
//! | --- | --- |
//! | `program` | installs the embedded program where the kernel can execute it |
//! | `invocation` | the program to run and its surroundings |
//! | `launch` | starts an attempt or an exec session |
//! | `spawn` | the code between clone and exec |
//! | `places` | reserved low descriptor numbers, so that a start does not copy the whole descriptor table |
//! | `records` | the runtime directory: read, list, cancel |
//! | `terminal` | terminals in the root of a task |
//! | `process` | a verified process: signals, exit, its whole tree |

mod invocation;
mod launch;
mod places;
mod process;
mod program;
mod records;
mod spawn;
mod terminal;

pub use herdlet_shim::isolation::{Capabilities, Namespaces};
pub use herdlet_shim::record::{Core, Exit, Process, Record, RecordError, State, Step};
pub use herdlet_shim::spec::SpecError;
pub use invocation::{
    CallFilter, Entry, FirstProcess, Invocation, Isolation, JoinedNamespaces, LogFiles, Logs, MessageQueues,
    NewPrivileges, OwnMounts, OwnNamespaces, Proc, ResourceLimit, ShownCgroups, StandardInput, User,
    WhenFull,
};
pub use launch::{Child, Launch, LaunchError, Session, ShimEnd, Terminal, enter, launch};
pub use process::{PidFd, ProcessError, kill_tree, open_task};
pub use program::{Program, ProgramError};
pub use records::{Listed, RecordsError, RuntimeDir, TombstoneOutcome};
pub use terminal::TaskTerminal;
pub(crate) use terminal::{inner_side, open_in_root};

//! The agent's side of the supervisor (shim): starting attempts, reading their records, finding and ending processes.
//!
//! In: an invocation (program, arguments, environment, ids, cgroups) and directories. Out: a running shim, later its record.
//! It must not know allocations, restart policies or why something is started: names are given to it.
//!
//! | file | what |
//! | --- | --- |
//! | `program` | puts the embedded program where it can be executed |
//! | `invocation` | what to run |
//! | `launch` | starts an attempt or an exec session |
//! | `spawn` | the few lines between clone and exec |
//! | `places` | reserved low numbers of descriptors, so that a start copies no table of them |
//! | `records` | the runtime directory: read, list, cancel |
//! | `process` | a process that is certainly the one meant: signals, its end, its whole tree |

mod invocation;
mod launch;
mod places;
mod process;
mod program;
mod records;
mod spawn;

pub use herdlet_shim::record::{Core, Exit, Process, Record, RecordError, State, Step};
pub use herdlet_shim::spec::SpecError;
pub use invocation::{Entry, Invocation, LogFiles, Logs, NewPrivileges, User, WhenFull};
pub use launch::{Child, Launch, LaunchError, Session, ShimEnd, Terminal, enter, launch};
pub use process::{PidFd, ProcessError, kill_tree, open_task};
pub use program::{Program, ProgramError};
pub use records::{Listed, RecordsError, RuntimeDir, TombstoneOutcome};

//! The stages of an allocation's lifecycle, and which tasks each admits.

use herdlet_api_types::job::Lifecycle;
use serde::{Deserialize, Serialize};

/// The stage of an allocation's lifecycle. It only moves forward, except for a restart of all tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Every gate is closed until all tasks are pending. Left at once unless all tasks are being restarted.
    #[default]
    Init,
    /// Prestart tasks may start.
    Prestart,
    /// Main tasks may start.
    Main,
    /// Poststart tasks may start.
    Poststart,
    /// Only restarts of main tasks and sidecars start.
    WaitAlloc,
    /// Poststop tasks may start.
    Poststop,
}

impl Stage {
    /// Where a lifecycle continues whose stage is unknown, as Nomad's does after a restore. `Init` would be wrong: it
    /// is the barrier of a restart of all tasks and waits until every task is pending, which a running task never
    /// becomes, so its siblings would wait forever. A closed gate does not keep a task from being watched. Prestart
    /// tasks whose end was forgotten run once more.
    pub const UNTOLD: Self = Self::Prestart;

    /// Whether a task of this kind may start.
    pub fn admits(self, lifecycle: Lifecycle) -> bool {
        use Lifecycle as L;
        match self {
            Self::Init => false,
            Self::Prestart => matches!(lifecycle, L::Prestart | L::PrestartSidecar),
            Self::Main => matches!(lifecycle, L::PrestartSidecar | L::Main),
            Self::Poststart => !matches!(lifecycle, L::Prestart | L::Poststop),
            Self::WaitAlloc => matches!(lifecycle, L::PrestartSidecar | L::Main | L::PoststartSidecar),
            Self::Poststop => lifecycle == L::Poststop,
        }
    }
}

//! How far an allocation's lifecycle has come, and which tasks may start then.

use herdlet_api_types::job::Lifecycle;
use serde::{Deserialize, Serialize};

/// How far an allocation's lifecycle has come. Only ever moves forward, except for a restart of all tasks.
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
    /// Nothing new starts but restarts of main tasks and sidecars.
    WaitAlloc,
    /// Poststop tasks may start.
    Poststop,
}

impl Stage {
    /// Where the lifecycle goes on of which nobody knows how far it had come, as Nomad's does after a restore. `Init` is the
    /// barrier of a restart of all and waits until every task is pending, which one that runs never becomes: its siblings would
    /// wait for ever. A closed gate keeps none from being watched; prestart tasks whose end was forgotten run once more.
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

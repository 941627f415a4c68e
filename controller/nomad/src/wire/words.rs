//! States of nodes, allocations and tasks. Unknown texts are kept as received.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
        #[serde(from = "String")]
        pub enum $name {
            /// No value was sent.
            #[default]
            Unsaid,
            $($(#[$variant_doc])* $variant,)*
            /// A value of another version.
            Other(String),
        }

        impl $name {
            /// The wire text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                match self {
                    Self::Unsaid => "",
                    $(Self::$variant => $text,)*
                    Self::Other(word) => word,
                }
            }
        }

        impl From<String> for $name {
            fn from(word: String) -> Self {
                match &word[..] {
                    "" => Self::Unsaid,
                    $($text => Self::$variant,)*
                    _ => Self::Other(word),
                }
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words! {
    /// A node's status, as servers see it.
    NodeStatus {
        /// It has registered or returned, and gets no work yet.
        Initializing = "initializing",
        /// It gets work.
        Ready = "ready",
        /// Its heartbeats have stopped.
        Down = "down",
        /// Its heartbeats have stopped, and it has allocations that may outlive that (1.3 and later).
        Disconnected = "disconnected",
    }
}

words! {
    /// Whether a node may get new work.
    Eligibility {
        /// It may.
        Eligible = "eligible",
        /// It may not.
        Ineligible = "ineligible",
    }
}

words! {
    /// The status that servers want an allocation to have.
    DesiredStatus {
        /// It should run.
        Run = "run",
        /// It should be stopped.
        Stop = "stop",
        /// It should be stopped, to make room.
        Evict = "evict",
    }
}

impl DesiredStatus {
    /// Whether its tasks should be stopped, for good.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        match self {
            Self::Stop | Self::Evict => true,
            Self::Unsaid | Self::Run | Self::Other(_) => false,
        }
    }
}

words! {
    /// An allocation's status, as its node reports it, or as servers assume it.
    ClientStatus {
        /// None of its tasks has started.
        Pending = "pending",
        /// A task runs.
        Running = "running",
        /// All tasks have ended successfully.
        Complete = "complete",
        /// A task has failed.
        Failed = "failed",
        /// The allocation and its node are gone. Set only by servers.
        Lost = "lost",
        /// The node is unreachable, and the allocation may still run. Set only by servers (1.3 and later).
        Unknown = "unknown",
    }
}

impl ClientStatus {
    /// Whether it will never run again.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        match self {
            Self::Complete | Self::Failed | Self::Lost => true,
            Self::Unsaid | Self::Pending | Self::Running | Self::Unknown | Self::Other(_) => false,
        }
    }
}

words! {
    /// A task's state.
    RunState {
        /// It has not started.
        Pending = "pending",
        /// It runs.
        Running = "running",
        /// It has ended for good.
        Dead = "dead",
    }
}

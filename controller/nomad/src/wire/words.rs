//! Words with a meaning: states of nodes, allocations and tasks. One that is not known here is kept as it came.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
        #[serde(from = "String")]
        pub enum $name {
            /// Nothing is said.
            #[default]
            Unsaid,
            $($(#[$variant_doc])* $variant,)*
            /// A word of another version.
            Other(String),
        }

        impl $name {
            /// The word.
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
    /// What a node is to the servers.
    NodeStatus {
        /// It has registered, or come back, and gets nothing to run yet.
        Initializing = "initializing",
        /// It gets work.
        Ready = "ready",
        /// Its heartbeats have stopped.
        Down = "down",
        /// Likewise, and it has allocations that may outlive that (1.3 and later).
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
    /// What servers want of an allocation.
    DesiredStatus {
        /// It is to run.
        Run = "run",
        /// It is to be stopped.
        Stop = "stop",
        /// Likewise, to make room.
        Evict = "evict",
    }
}

impl DesiredStatus {
    /// Whether its tasks are to be stopped, for good.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        match self {
            Self::Stop | Self::Evict => true,
            Self::Unsaid | Self::Run | Self::Other(_) => false,
        }
    }
}

words! {
    /// How an allocation is, as its node tells it, or as servers think where it can't.
    ClientStatus {
        /// None of its tasks has started.
        Pending = "pending",
        /// A task runs.
        Running = "running",
        /// All tasks have ended well.
        Complete = "complete",
        /// A task has failed.
        Failed = "failed",
        /// Servers only: its node is gone, and so is it.
        Lost = "lost",
        /// Servers only: its node is not in reach, and it may still run (1.3 and later).
        Unknown = "unknown",
    }
}

impl ClientStatus {
    /// Whether it never runs again.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        match self {
            Self::Complete | Self::Failed | Self::Lost => true,
            Self::Unsaid | Self::Pending | Self::Running | Self::Unknown | Self::Other(_) => false,
        }
    }
}

words! {
    /// How a task is.
    RunState {
        /// It has not started.
        Pending = "pending",
        /// It runs.
        Running = "running",
        /// It has ended for good.
        Dead = "dead",
    }
}

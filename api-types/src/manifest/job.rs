//! `spec` of a job.

use std_alloc::{collections::BTreeMap, string::String, vec::Vec};

#[cfg(feature = "schema")]
use super::unused::{NO_SUBMITTER, ONE_AT_A_TIME, ONE_MACHINE, consul, migrate};
use super::{Affinity, Constraint, GroupSpec, Reschedule, Spread, Text, Update, Vault};
use crate::job::{JobType, PayloadRule};

block! {
    /// A job: groups of tasks, and rules for their roll-out.
    #[cfg_attr(feature = "schema", schemars(extend(
        "x-not-built" = ["consul", "consul_namespace", "secret", "secrets", "vault_namespace"],
        "x-no-effect" = {
            "all_at_once": ONE_MACHINE,
            "consul_token": NO_SUBMITTER,
            "migrate": ONE_AT_A_TIME,
            "multiregion": "has no effect: this agent is a region of its own",
            "vault_token": NO_SUBMITTER,
        },
        "x-default" = { "consul": [consul()], "consul_namespace": ["default"], "migrate": [migrate()] },
    )))]
    pub struct JobSpec {
        /// A `service` runs until it is stopped, a `batch` job until its tasks have ended with code 0. `system` and `sysbatch` run one allocation of
        /// each group per machine. Default `service`.
        #[serde(rename = "type")]
        pub kind: JobType,
        /// The display name; default `metadata.name`.
        pub name: String,
        /// `true` stops the job but keeps it, with its versions and logs, like `herdlet stop`; `false` starts it again. Default `false`.
        pub stop: bool,
        /// 1 to 100; default 50. Among jobs that wait for resources or a port, the highest comes first.
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 100)))]
        pub priority: u8,
        /// The value of `NOMAD_REGION`; default `global`.
        pub region: String,
        /// Datacenters this job may run in; `*` is a wildcard; default `["*"]`.
        pub datacenters: Vec<String>,
        /// The node pool this job may run in, or `all`; default `default`.
        pub node_pool: String,
        /// Requirements that the machine must meet for this job to run there.
        pub constraints: Vec<Constraint>,
        /// Preferences for the machine.
        pub affinities: Vec<Affinity>,
        /// Distribution of allocations over machines; has no effect on a single one.
        pub spreads: Vec<Spread>,
        /// Values for `NOMAD_META_<key>`; groups and tasks may override them.
        pub meta: BTreeMap<String, Text>,
        /// Makes this a parameterized job: it runs nothing itself, and each `herdlet dispatch` creates a child job.
        pub parameterized: Parameterized,
        /// Makes this a periodic job: it runs nothing itself, and each time of a cron schedule creates a child job.
        pub periodic: Periodic,
        /// How a new version replaces the old one; groups may override individual fields. Without it all allocations change at once.
        pub update: Update,
        /// When a permanently failed allocation is replaced; groups may override individual fields.
        pub reschedule: Reschedule,
        /// A token of Vault or OpenBao for each task of a group that has no `vault` block of its own, and neither has its group.
        pub vault: Vault,
        /// A description and links for user interfaces; stored and shown, but without effect.
        pub ui: Ui,
        /// The groups of this job, at least one.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub groups: Vec<GroupSpec>,
    }
}

block! {
    /// A description and links for user interfaces.
    pub struct Ui {
        /// At most 1000 characters of Markdown.
        pub description: Text,
        /// Links.
        pub links: Vec<UiLink>,
    }
}

block! {
    /// A link for user interfaces.
    pub struct UiLink {
        /// Its text.
        pub label: Text,
        /// Its address.
        pub url: Text,
    }
}

block! {
    /// The inputs of a dispatch.
    pub struct Parameterized {
        /// Whether a dispatch has a payload of at most 16 KiB: `optional` (the default), `required` or `forbidden`.
        pub payload: PayloadRule,
        /// Meta keys that a dispatch must set.
        pub meta_required: Vec<String>,
        /// Meta keys that a dispatch may set; otherwise their variables are empty.
        pub meta_optional: Vec<String>,
    }
}

block! {
    /// The launch schedule of a job.
    pub struct Periodic {
        /// A cron expression: minute, hour, day of month, month, day of week; or `@daily` and the like. Use either this or `crons`.
        pub cron: String,
        /// Several cron expressions, whose times are combined.
        pub crons: Vec<String>,
        /// The time zone of the expressions, for instance `Europe/Berlin`; default `UTC`.
        pub time_zone: String,
        /// Skip a launch while an earlier one is still running.
        pub prohibit_overlap: bool,
        /// `false` disables all launches, including `herdlet job periodic force`. Default `true`.
        pub enabled: bool,
    }
}

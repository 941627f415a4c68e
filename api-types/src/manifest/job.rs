//! `spec` of a job.

use std_alloc::{collections::BTreeMap, string::String, vec::Vec};

use super::{Affinity, Constraint, GroupSpec, Reschedule, Spread, Text, Update};
use crate::job::{JobType, PayloadRule};

block! {
    /// A job: groups of tasks, and how they are rolled out.
    #[cfg_attr(feature = "schema", schemars(extend("x-not-built" = [
        "all_at_once", "consul", "consul_namespace", "migrate", "multiregion",
        "ui", "vault", "vault_namespace",
    ])))]
    pub struct JobSpec {
        /// A `service` runs until it is stopped, a `batch` job until its tasks have ended with code 0. `system` and `sysbatch` are
        /// the same with one allocation of each group on a machine. Default `service`.
        #[serde(rename = "type")]
        pub kind: JobType,
        /// The name that is shown; `metadata.name` unless written.
        pub name: String,
        /// `true` stops the job and keeps it, with its versions and logs, as `herdlet stop` does; `false` starts it again.
        /// Default `false`.
        pub stop: bool,
        /// 1 to 100; default 50. Of jobs that wait for room or a port the highest comes first.
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 100)))]
        pub priority: u8,
        /// `NOMAD_REGION`; default `global`.
        pub region: String,
        /// Datacenters this job may run in; `*` stands for anything; default `["*"]`.
        pub datacenters: Vec<String>,
        /// The node pool this job may run in, or `all`; default `default`.
        pub node_pool: String,
        /// What must hold on the machine for this job to run there.
        pub constraints: Vec<Constraint>,
        /// What is preferred of the machine.
        pub affinities: Vec<Affinity>,
        /// How allocations are shared out among machines; on one it changes nothing.
        pub spreads: Vec<Spread>,
        /// Values for `NOMAD_META_<key>`; groups and tasks may override them.
        pub meta: BTreeMap<String, Text>,
        /// Makes this a job that runs nothing by itself: each `herdlet dispatch` makes a child of it, a job of its own.
        pub parameterized: Parameterized,
        /// Makes this a job that runs nothing by itself: at moments that cron expressions name a child of it is made.
        pub periodic: Periodic,
        /// How a new version replaces the old one; groups may override single fields. Without it all changes at once.
        pub update: Update,
        /// When another allocation follows one that has failed for good; groups may override single fields.
        pub reschedule: Reschedule,
        /// The groups of this job: at least one.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub groups: Vec<GroupSpec>,
    }
}

block! {
    /// What a dispatch brings.
    pub struct Parameterized {
        /// Whether it brings a payload of at most 16 KiB: `optional` (the default), `required` or `forbidden`.
        pub payload: PayloadRule,
        /// Keys of meta that it must bring.
        pub meta_required: Vec<String>,
        /// Keys of meta that it may bring; as variables they are empty where it doesn't.
        pub meta_optional: Vec<String>,
    }
}

block! {
    /// When a job is launched.
    pub struct Periodic {
        /// A cron expression: minute, hour, day of month, month, day of week; `@daily` and the like. Either this or `crons`.
        pub cron: String,
        /// Several of them: each moment that one of them names.
        pub crons: Vec<String>,
        /// By whose clocks, for instance `Europe/Berlin`; default `UTC`.
        pub time_zone: String,
        /// Skip a moment while an earlier launch still runs.
        pub prohibit_overlap: bool,
        /// `false` launches nothing, nor does `herdlet job periodic force`. Default `true`.
        pub enabled: bool,
    }
}

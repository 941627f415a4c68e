//! Canonical → manifest: the document that a person would write for this job or volume; defaults are left out.
//!
//! Total and exact: reading the manifest again gives an equal job.

mod group;
mod identity;
mod service;
mod task;

use std_alloc::{collections::BTreeMap, format, string::String, vec::Vec};

use self::group::from_group;
use super::{
    Affinity, ApiVersion, Constraint, JobKind, JobManifest, JobSpec, Metadata, MkdirParameters, Network,
    Parameterized, Periodic, Port, Restart, Span, Spread, Text, Ui, UiLink, VolumeKindName, VolumeManifest,
    VolumeMetadata, VolumePlugin, VolumeSpec, VolumeType,
    defaults::{DEFAULT_NAMESPACE, MKDIR_MODE, NODE_POOL, PRIORITY, REGION, TIME_ZONE},
    non_empty, texts, unless,
};
use crate::{
    Duration, constraint,
    job::{self, Job, PayloadRule, RestartPolicy},
    volume::{Volume, VolumeKind},
};

impl JobManifest {
    /// The document that describes this job.
    pub fn from_job(job: &Job) -> Self {
        Self {
            api_version: ApiVersion::V1,
            kind: JobKind::Job,
            metadata: Metadata {
                name: Some(job.id.clone()),
                namespace: unless(&job.namespace, DEFAULT_NAMESPACE),
                labels: texts(&job.labels),
                annotations: None,
            },
            spec: JobSpec {
                kind: Some(job.kind),
                name: unless(&job.name, &job.id),
                stop: yes(job.stop),
                priority: (job.priority != PRIORITY).then_some(job.priority),
                region: unless(&job.region, REGION),
                datacenters: (job.datacenters != ["*"]).then(|| job.datacenters.clone()),
                node_pool: unless(&job.node_pool, NODE_POOL),
                constraints: from_constraints(&job.constraints),
                affinities: from_affinities(&job.affinities),
                spreads: from_spreads(&job.spreads),
                vault: None,
                ui: job.ui.as_ref().map(from_ui),
                meta: texts(&job.meta),
                // A child's manifest describes what it runs.
                parameterized: job
                    .parameterized
                    .as_ref()
                    .filter(|_| job.takes_dispatches())
                    .map(from_parameterized),
                periodic: job.periodic.as_ref().map(from_periodic),
                update: None,
                reschedule: None,
                groups: Some(job.groups.iter().map(|group| from_group(group, job)).collect()),
            },
        }
    }
}

impl VolumeManifest {
    /// The document that describes this volume.
    pub fn from_volume(volume: &Volume) -> Self {
        let mut spec = VolumeSpec {
            kind: Some(VolumeType::Host),
            read_only: yes(volume.read_only),
            ..VolumeSpec::default()
        };
        match &volume.kind {
            VolumeKind::HostPath { path } => spec.host_path = Some(path.clone()),
            VolumeKind::Mkdir { mode, uid, gid } => {
                let mode = (*mode != MKDIR_MODE).then(|| Text(format!("{mode:04o}")));
                spec.plugin_id = Some(VolumePlugin::Mkdir);
                spec.parameters = unless_empty(MkdirParameters { mode, uid: *uid, gid: *gid });
            }
        }
        Self {
            api_version: ApiVersion::V1,
            kind: VolumeKindName::Volume,
            metadata: VolumeMetadata { name: Some(volume.name.clone()), ..VolumeMetadata::default() },
            spec,
        }
    }
}

fn from_ui(ui: &job::Ui) -> Ui {
    let text = |text: &str| unless(text, "").map(Text);
    let link = |link: &job::UiLink| UiLink { label: text(&link.label), url: text(&link.url) };
    Ui { description: text(&ui.description), links: non_empty(ui.links.iter().map(link).collect()) }
}

fn from_parameterized(parameterized: &job::Parameterized) -> Parameterized {
    let keys = |keys: &Vec<String>| non_empty(keys.clone());
    Parameterized {
        payload: (parameterized.payload != PayloadRule::default()).then_some(parameterized.payload),
        meta_required: keys(&parameterized.meta_required),
        meta_optional: keys(&parameterized.meta_optional),
    }
}

fn from_periodic(periodic: &job::Periodic) -> Periodic {
    let (cron, crons) = match periodic.crons.as_slice() {
        [one] => (Some(one.clone()), None),
        several => (None, Some(several.to_vec())),
    };
    Periodic {
        cron,
        crons,
        time_zone: unless(&periodic.time_zone, TIME_ZONE),
        prohibit_overlap: yes(periodic.prohibit_overlap),
        enabled: (!periodic.enabled).then_some(false),
    }
}

fn from_constraints(constraints: &[constraint::Constraint]) -> Option<Vec<Constraint>> {
    non_empty(constraints.iter().map(Constraint::from_constraint).collect())
}

fn from_affinities(affinities: &[constraint::Affinity]) -> Option<Vec<Affinity>> {
    non_empty(affinities.iter().map(Affinity::from_affinity).collect())
}

fn from_spreads(spreads: &[constraint::Spread]) -> Option<Vec<Spread>> {
    non_empty(spreads.iter().map(Spread::from_spread).collect())
}

fn from_restart(policy: &RestartPolicy, outer: &RestartPolicy) -> Option<Restart> {
    unless_empty(Restart {
        attempts: (policy.attempts != outer.attempts).then_some(policy.attempts),
        interval: from_length(policy.interval, outer.interval),
        delay: from_length(policy.delay, outer.delay),
        mode: (policy.mode != outer.mode).then_some(policy.mode),
        render_templates: (policy.render_templates != outer.render_templates)
            .then_some(policy.render_templates),
    })
}

fn from_ports(ports: &BTreeMap<String, job::PortRequest>) -> Network {
    let ports = ports.iter();
    let ports = ports
        .map(|(label, port)| (label.clone(), Port { fixed: port.fixed, to: port.to, host_network: None }));
    Network { ports: Some(ports.collect()), ..Network::default() }
}

fn from_plain(strings: &[String]) -> Option<Vec<Text>> {
    non_empty(strings.iter().cloned().map(Text).collect())
}

fn from_length(length: Duration, default: Duration) -> Option<Span> {
    (length != default).then_some(Span(length))
}

/// A flag; `None` if it is false.
fn yes(flag: bool) -> Option<bool> {
    flag.then_some(true)
}

/// A block; `None` if it is empty.
fn unless_empty<T: Default + PartialEq>(block: T) -> Option<T> {
    (block != T::default()).then_some(block)
}

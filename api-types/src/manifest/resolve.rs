//! Manifest → canonical: fills in defaults and merges blocks.
//!
//! Total: missing required fields become empty; validation refuses them before. The defaults are Nomad's (job
//! specification, `nomad/structs`), except where the YAML format differs: services go to the built-in catalogue, and
//! absent resources are not limited (see [`super::defaults`]).

mod group;
mod identity;
mod names;
mod policy;
mod service;
mod task;

use std_alloc::{borrow::ToOwned, string::String, vec, vec::Vec};

use self::group::{Outer, to_group};
use super::{
    Affinity, Constraint, JobManifest, Parameterized, Periodic, Span, Spread, Text, Ui, UiLink,
    VolumeManifest,
    defaults::{DEFAULT_NAMESPACE, MKDIR_MODE, NODE_POOL, PRIORITY, REGION, TIME_ZONE},
    strings,
};
use crate::{
    Duration, constraint,
    job::{self, Job, JobType},
    volume::{Volume, VolumeKind},
};

pub(super) use self::names::Names;

impl JobManifest {
    /// Converts to a job.
    pub fn to_job(&self) -> Job {
        let spec = &self.spec;
        let id = self.metadata.name.clone().unwrap_or_default();
        let name = spec.name.clone().unwrap_or_else(|| id.clone());
        let outer = Outer {
            job: &name,
            kind: spec.kind.unwrap_or(JobType::Service),
            update: spec.update.as_ref(),
            reschedule: spec.reschedule.as_ref(),
            vault: spec.vault.as_ref(),
        };
        let groups = spec.groups.iter().flatten().map(|group| to_group(group, &outer)).collect();
        Job {
            namespace: self.metadata.namespace.clone().unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()),
            labels: strings(self.metadata.labels.as_ref()),
            kind: outer.kind,
            stop: spec.stop.unwrap_or(false),
            priority: spec.priority.unwrap_or(PRIORITY),
            region: spec.region.clone().unwrap_or_else(|| REGION.to_owned()),
            datacenters: spec.datacenters.clone().unwrap_or_else(|| vec!["*".to_owned()]),
            node_pool: spec.node_pool.clone().unwrap_or_else(|| NODE_POOL.to_owned()),
            constraints: to_constraints(spec.constraints.as_deref()),
            affinities: to_affinities(spec.affinities.as_deref()),
            spreads: to_spreads(spec.spreads.as_deref()),
            ui: spec.ui.as_ref().map(to_ui),
            meta: strings(spec.meta.as_ref()),
            parameterized: spec.parameterized.as_ref().map(to_parameterized),
            periodic: spec.periodic.as_ref().map(to_periodic),
            child: None,
            groups,
            name,
            id,
        }
    }
}

impl VolumeManifest {
    /// Converts to a volume.
    pub fn to_volume(&self) -> Volume {
        let spec = &self.spec;
        let parameters = spec.parameters.clone().unwrap_or_default();
        let kind = match &spec.host_path {
            Some(path) => VolumeKind::HostPath { path: path.clone() },
            None => VolumeKind::Mkdir {
                mode: parameters
                    .mode
                    .and_then(|mode| u32::from_str_radix(&mode.0, 8).ok())
                    .unwrap_or(MKDIR_MODE),
                uid: parameters.uid,
                gid: parameters.gid,
            },
        };
        Volume {
            name: self.metadata.name.clone().unwrap_or_default(),
            kind,
            read_only: spec.read_only.unwrap_or(false),
        }
    }
}

fn to_ui(spec: &Ui) -> job::Ui {
    let text = |text: &Option<Text>| text.clone().unwrap_or_default().0;
    let link = |link: &UiLink| job::UiLink { label: text(&link.label), url: text(&link.url) };
    job::Ui { description: text(&spec.description), links: spec.links.iter().flatten().map(link).collect() }
}

fn to_parameterized(spec: &Parameterized) -> job::Parameterized {
    job::Parameterized {
        payload: spec.payload.unwrap_or_default(),
        meta_required: spec.meta_required.clone().unwrap_or_default(),
        meta_optional: spec.meta_optional.clone().unwrap_or_default(),
    }
}

fn to_periodic(spec: &Periodic) -> job::Periodic {
    job::Periodic {
        crons: spec.cron.iter().chain(spec.crons.iter().flatten()).cloned().collect(),
        time_zone: spec.time_zone.clone().unwrap_or_else(|| TIME_ZONE.to_owned()),
        prohibit_overlap: spec.prohibit_overlap.unwrap_or(false),
        enabled: spec.enabled.unwrap_or(true),
    }
}

fn to_constraints(specs: Option<&[Constraint]>) -> Vec<constraint::Constraint> {
    specs.into_iter().flatten().map(Constraint::to_constraint).collect()
}

fn to_affinities(specs: Option<&[Affinity]>) -> Vec<constraint::Affinity> {
    specs.into_iter().flatten().map(Affinity::to_affinity).collect()
}

fn to_spreads(specs: Option<&[Spread]>) -> Vec<constraint::Spread> {
    specs.into_iter().flatten().map(Spread::to_spread).collect()
}

fn length(written: Option<Span>, default: Duration) -> Duration {
    written.map_or(default, |span| span.0)
}

fn plain(texts: Option<&[Text]>) -> Vec<String> {
    texts.into_iter().flatten().map(|text| text.0.clone()).collect()
}

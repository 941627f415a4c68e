//! Jobs that folders of manifests define.
//!
//! A revert of such a job puts a version in force that its file does not define. The job is then held: the file is
//! applied again only when its definition of the job changes.

use std_alloc::vec::Vec;

use herdlet_api_types::{JobKey, job::Job, volume::Volume};

use crate::{
    event::{JobChange, Refusal, Reply},
    job::{Definition, Source},
    turn::OpenTurn,
    world::World,
};

impl World {
    /// Applies what a folder defines, except jobs that are held.
    pub(super) fn apply_folder(
        &mut self,
        open: &mut OpenTurn<'_>,
        jobs: Vec<(Job, Source)>,
        volumes: Vec<Volume>,
    ) -> Result<Reply, Refusal> {
        let (mut applied, mut sources) = (Vec::new(), Vec::new());
        for (job, source) in jobs {
            if !self.is_held(&job.key(), &source) {
                sources.push((job.key(), source));
                applied.push(job);
            }
        }
        let reply = self.apply_set(open, applied, volumes)?;
        for (key, source) in sources {
            self.define_job(&key, Some(source));
        }
        Ok(reply)
    }

    /// Whether a revert put another version in force, and the definition has not changed since.
    fn is_held(&self, key: &JobKey, source: &Source) -> bool {
        let entry = self.jobs.get(key).filter(|entry| !entry.state.deleting);
        let definition = entry.and_then(|entry| entry.state.definition.as_ref());
        definition.is_some_and(|definition| definition.held && !source.differs(&definition.source))
    }

    /// Sets where the job's current version is defined.
    pub(super) fn define_job(&mut self, key: &JobKey, source: Option<Source>) {
        let Some(entry) = self.jobs.get_mut(key) else { return };
        let version = entry.state.version;
        let definition = source.map(|source| Definition { source, version, held: false });
        if entry.state.definition != definition {
            entry.state.definition = definition;
        }
    }

    /// Puts the specification of an older version in force. If a folder defines another one, the job is held.
    pub(super) fn revert_to(&mut self, open: &mut OpenTurn<'_>, job: Job) -> (u64, JobChange) {
        let key = job.key();
        let accepted = self.accept_job(open, job);
        if let Some(entry) = self.jobs.get_mut(&key)
            && let Some(definition) = &entry.state.definition
        {
            let held = entry.text(definition.version).is_none_or(|defined| defined != entry.current);
            if held != definition.held {
                let definition = Definition { held, ..definition.clone() };
                entry.state.definition = Some(definition);
            }
        }
        accepted
    }
}

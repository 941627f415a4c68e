//! Writes the outputs of a render: only what differs from the last one.

use std::collections::BTreeMap;

use herdlet_api_types::job::Template as Block;
use herdlet_base::{
    artifact::destination::{Base, Dirs},
    clock::boot_id,
    safe_fs::{FsError, Rights},
};
use herdlet_runtime::{BootClock, Clock as _};
use herdlet_template::Render;
use sha2::{Digest as _, Sha256};

use super::{Answers, RenderError, Renderer, Round, TaskTemplates, render_all, unix_now};
use crate::{
    data::{Data, Origin},
    env_file,
    place::Place,
    record::{Indexes, Record},
};

/// Names and values of all variables: `private`, of 1 MiB, holds those of the last start and of the last render, twice while
/// they are replaced.
const VARIABLES_BYTES_MAX: usize = 192 << 10;

/// Whether the file of each template is there.
pub(super) fn all_are_there(task: &TaskTemplates) -> bool {
    let record = Record::read(&task.dirs).ok().flatten();
    let has_variables = record.is_some() || !task.templates.iter().any(|block| block.env);
    let is_there = |(index, block): (usize, &Block)| {
        Place::of(&block.destination, &task.dirs)
            .is_ok_and(|place| is_there(task, (index, &place), record.as_ref()))
    };
    has_variables && task.templates.iter().enumerate().all(is_there)
}

/// Whether the file of a template is there. A task may change it. After a reboot, without a record, it must have the last output: a
/// power cut leaves files empty that were not on the disk yet.
fn is_there(task: &TaskTemplates, (index, place): (usize, &Place), record: Option<&Record>) -> bool {
    match (record, task.before.get(index)) {
        (None, Some(last)) => {
            place.read(&task.dirs).is_ok_and(|bytes| bytes.is_some_and(|bytes| revision(&bytes) == *last))
        }
        (Some(_), _) | (None, None) => place.exists(&task.dirs),
    }
}

impl Renderer {
    /// The indexes of the data of a Consul in these outputs.
    pub(super) fn indexes(&self, task: &TaskTemplates, renders: &[Render]) -> Indexes {
        let data = renders.iter().flat_map(|render| &render.used).map(|query| Data::of(query, &task.reader));
        let of_consul = data.filter(|data| matches!(data.origin, Origin::Consul { .. }));
        let index = |data: Data| {
            let index = self.peers.with_data(&data)?.ok()?.index_of(&data)?;
            Some((data.query.to_string(), index))
        };
        of_consul.filter_map(index).collect()
    }
}

/// Writes what differs. If anything does, everything is rendered once more with the present time. A render that fails or
/// is interrupted between two files leaves a mark: the next one does not trust the revisions of the last complete one.
pub(super) fn write_all(
    task: &TaskTemplates,
    round: &Round,
    renders: Vec<Render>,
) -> Result<Vec<u64>, RenderError> {
    let outputs = outputs_of(task, renders)?;
    let revisions: Vec<u64> = outputs.iter().map(|output| revision(output)).collect();
    let known = Record::read(&task.dirs).map_err(RenderError::Record)?;
    let is_complete = known.as_ref().is_some_and(|last| !last.is_unfinished);
    if revisions == task.before && is_complete && all_are_there(task) {
        if let Some(record @ Record { outdated_since_ns: Some(_), .. }) = known {
            Record { outdated_since_ns: None, ..record }.write(&task.dirs).map_err(RenderError::Record)?;
        }
        return Ok(revisions);
    }
    let last = known.clone().unwrap_or_default();
    let now = unix_now();
    let is_current = revisions == task.before || round.answers.unix_time == now;
    let (outputs, rendered_at) = if is_current {
        (outputs, round.answers.unix_time)
    } else {
        let answers = Answers { unix_time: now, ..round.answers.clone() };
        (outputs_of(task, render_all(&round.parsed, &answers))?, now)
    };
    let env = variables(task, &outputs)?;
    let boot = Some(boot_id());
    let (started, indexes) = (last.started.clone(), round.indexes.clone());
    let record = Record { boot, rendered_at, env, started, indexes, ..Record::default() };
    let keeps_files = !task.before.is_empty() && !last.is_unfinished;
    if keeps_files {
        Record { boot, is_unfinished: true, ..last }.write(&task.dirs).map_err(RenderError::Record)?;
    }
    let mut revisions = Vec::with_capacity(outputs.len());
    for (index, (block, output)) in task.templates.iter().zip(&outputs).enumerate() {
        let revision = revision(output);
        let place = Place::of(&block.destination, &task.dirs)?;
        let is_written = keeps_files && task.before.get(index) == Some(&revision);
        if !is_written || !is_there(task, (index, &place), known.as_ref()) {
            write(task, (block, &place), output)?;
        }
        revisions.push(revision);
    }
    record.write(&task.dirs).map_err(RenderError::Record)?;
    Ok(revisions)
}

/// Since when the last output is outdated, by `CLOCK_BOOTTIME`; none if it is not there. Data is missing for it now. The first
/// time is stored for later agents.
pub(super) fn outdated_since(task: &TaskTemplates) -> Result<Option<u64>, RenderError> {
    if task.before.is_empty() || !all_are_there(task) {
        return Ok(None);
    }
    let record = Record::read(&task.dirs).map_err(RenderError::Record)?.unwrap_or_default();
    if let (Some(_), Some(since_ns)) = (record.boot, record.outdated_since_ns) {
        return Ok(Some(since_ns));
    }
    let since_ns = BootClock.now().boot_ns;
    if record.boot.is_some() {
        Record { outdated_since_ns: Some(since_ns), ..record }
            .write(&task.dirs)
            .map_err(RenderError::Record)?;
    }
    Ok(Some(since_ns))
}

fn outputs_of(task: &TaskTemplates, renders: Vec<Render>) -> Result<Vec<Vec<u8>>, RenderError> {
    let failed =
        |block: &Block, source| RenderError::Template { destination: block.destination.clone(), source };
    let each = task.templates.iter().zip(renders);
    each.map(|(block, render)| render.result.map_err(|error| failed(block, error))).collect()
}

fn variables(task: &TaskTemplates, outputs: &[Vec<u8>]) -> Result<BTreeMap<String, String>, RenderError> {
    let mut all = BTreeMap::new();
    for (block, output) in task.templates.iter().zip(outputs).filter(|(block, _)| block.env) {
        let failed = |source| RenderError::Env { destination: block.destination.clone(), source };
        all.extend(env_file::parse(output).map_err(failed)?);
    }
    let bytes = all.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > VARIABLES_BYTES_MAX {
        return Err(RenderError::Variables { bytes, limit: VARIABLES_BYTES_MAX });
    }
    Ok(all)
}

fn write(task: &TaskTemplates, (block, place): (&Block, &Place), output: &[u8]) -> Result<(), RenderError> {
    let owner = match (block.uid, block.gid) {
        (None, None) => None,
        (uid, gid) => Some((
            uid.unwrap_or_else(|| rustix::process::getuid().as_raw()),
            gid.unwrap_or_else(|| rustix::process::getgid().as_raw()),
        )),
    };
    let rights = Rights::Exact { mode: block.perms & 0o777, owner };
    let rights = (rights, task.owner.as_ref());
    let written = match &task.root {
        Some(root) => place.write_seen(root, &task.dirs, output, rights),
        None => place.write(&task.dirs, output, rights),
    };
    written.map_err(|source| {
        let destination = block.destination.clone();
        let (bytes, mib) = (output.len(), task.secrets_mib);
        if place.base() == Base::Secrets && bytes as u64 > mib << 20 {
            return RenderError::TooLarge { destination, bytes, mib };
        }
        if place.base() == Base::Secrets && source.is_full() {
            return RenderError::NoRoom { destination, bytes, mib };
        }
        RenderError::Write { destination, source }
    })
}

/// Identifies an output. Never 0, which means that there is none.
fn revision(output: &[u8]) -> u64 {
    let digest = Sha256::digest(output);
    let start = digest.first_chunk().copied().map_or(0, u64::from_le_bytes);
    start.max(1)
}

/// Variables of a task from its templates with `env = true`, as of the last render.
///
/// # Errors
/// If they can't be read.
pub fn template_variables(dirs: &Dirs) -> Result<BTreeMap<String, String>, FsError> {
    Ok(Record::read(dirs)?.map(|record| record.env).unwrap_or_default())
}

/// Notes that an attempt starts with these variables.
///
/// # Errors
/// If that can't be written.
pub fn note_start(dirs: &Dirs) -> Result<(), FsError> {
    let Some(record) = Record::read(dirs)? else { return Ok(()) };
    if record.started.as_ref() == Some(&record.env) {
        return Ok(());
    }
    Record { started: Some(record.env.clone()), ..record }.write(dirs)
}

/// The variables that the last attempt has started with: its services are registered with them, whatever has been
/// rendered since.
///
/// # Errors
/// If they can't be read.
pub fn started_variables(dirs: &Dirs) -> Result<BTreeMap<String, String>, FsError> {
    let record = Record::read(dirs)?.unwrap_or_default();
    Ok(record.started.unwrap_or(record.env))
}

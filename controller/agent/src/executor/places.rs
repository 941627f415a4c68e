//! Directories, mounts, tokens and volumes, through their drivers. All of these block, so they run on the blocking pool.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use herdlet_api_types::{
    Duration, UnixNanos,
    alloc::Allocation,
    driver::{self, has_own_root, runs_images},
    job::{Identity, Resources, Task},
    volume::Volume,
};
use herdlet_base::{
    clock::wall_now,
    mounts::kernel::Access,
    observation::{Class, Observation},
    user::UserError,
};
use herdlet_driver::{DriverInfo, FsIsolation};
use herdlet_plan::{
    action::{MountSource, Outcome},
    env::Variables,
    facts::Facts,
    identity_claims::{Claims, Grant, Holder},
    time::Deadline,
};
use herdlet_storage::{
    access::TaskUsers,
    alloc_dir::{AllocDir, migration::Migration},
    file_access::FileAccess,
    identity::{IdentityError, SignedToken, TaskTokens, WantedToken},
    mounts::{Binding, Destination, MountError, TaskMounts},
    payload,
    task_dir::TaskDir,
    volume::HostVolumes,
};

use super::{blocking::inspected, file_access, identities};
use crate::{
    executor::{Context, PlaceVerb, Refusal, Workload, failed, fatal, retry},
    present,
    state_db::accepted::KeptAllocation,
};

/// The allocation directory.
pub async fn alloc_dir(context: &Arc<Context>, alloc: &Arc<Allocation>, verb: PlaceVerb) -> Outcome {
    let migration = alloc.predecessor().map(|previous| {
        let tasks = alloc.group().map(|group| &group.tasks).into_iter().flatten();
        Migration { previous, tasks: tasks.map(|task| task.name.clone()).collect() }
    });
    let dir = AllocDir::new(&context.paths, alloc.id).inheriting(migration);
    let (context, alloc) = (Arc::clone(context), Arc::clone(alloc));
    blocking(move || {
        let users = match used_by(verb, || task_users(&context, &alloc)) {
            Ok(users) => users,
            Err(error) => return failed(error.class(), &error),
        };
        let dir = dir.used_by(with_images(&alloc, users));
        let result = match verb {
            PlaceVerb::Up => match KeptAllocation::bytes_of(&alloc) {
                Ok(spec) => dir.up(&spec).map(|()| Outcome::Done(None)),
                Err(error) => return fatal(format!("write the allocation as JSON: {error}")),
            },
            PlaceVerb::Down => dir.down().map(|()| Outcome::Done(None)),
            PlaceVerb::Inspect => dir.inspect().map(|seen| inspected(seen, None)),
        };
        result.unwrap_or_else(|error| failed(error.class(), &error))
    })
    .await
}

/// A task's directory.
pub async fn task_dir(context: &Arc<Context>, workload: &Workload, verb: PlaceVerb) -> Outcome {
    let dir = TaskDir::new(task_path(context, workload), context.privileges);
    let (context, workload) = (Arc::clone(context), workload.clone());
    blocking(move || {
        let task = workload.task();
        let user = task.and_then(machine_user);
        let users = match used_by(verb, || task_users(&context, &workload.alloc)?.of_task(user)) {
            Ok(users) => users,
            Err(error) => return failed(error.class(), &error),
        };
        let dir = dir.used_by(match task.map(|task| task.driver.as_str()) {
            Some(driver) if runs_images(driver) => users.of_image(),
            Some(driver) if has_own_root(driver) => users.of_root(),
            Some(_) | None => users,
        });
        let dir =
            dir.with_secrets_of(task.map_or(Resources::SECRETS_MIB, |task| task.resources.secrets_mib()));
        let result = match verb {
            PlaceVerb::Up => dir.up().map(|()| Outcome::Done(None)),
            PlaceVerb::Down => dir.down().map(|()| Outcome::Done(None)),
            PlaceVerb::Inspect => dir.inspect().map(|seen| inspected(seen, None)),
        };
        result.unwrap_or_else(|error| failed(error.class(), &error))
    })
    .await
}

/// The users for `verb`. An inspection works even if name services fail; a removal needs no users.
fn used_by(
    verb: PlaceVerb,
    find: impl FnOnce() -> Result<TaskUsers, UserError>,
) -> Result<TaskUsers, UserError> {
    match verb {
        PlaceVerb::Up => find(),
        PlaceVerb::Inspect => Ok(find().unwrap_or_else(|_| TaskUsers::unknown())),
        PlaceVerb::Down => Ok(TaskUsers::default()),
    }
}

/// The users of an allocation's tasks, and the users who may enter every allocation.
fn task_users(context: &Context, alloc: &Allocation) -> Result<TaskUsers, UserError> {
    users_of(alloc, &context.task_dir_users)
}

/// Like [`task_users`], with these `guests`.
pub(crate) fn users_of(alloc: &Allocation, guests: &[String]) -> Result<TaskUsers, UserError> {
    let users = TaskUsers::find(own_users(alloc))?.and_guests(guests.iter().map(String::as_str))?;
    let without_root = tasks(alloc).filter(|task| !has_own_root(&task.driver));
    Ok(with_images(alloc, users.entering(without_root.filter_map(machine_user))?))
}

/// Adds the users of images and other roots, if a task of the allocation has one.
fn with_images(alloc: &Allocation, users: TaskUsers) -> TaskUsers {
    let has_roots = tasks(alloc).any(|task| has_own_root(&task.driver));
    if has_roots { users.and_users_of_images() } else { users }
}

/// Names of the users who may write to the directories that the tasks of an allocation share: the users of [`task_users`].
pub(super) fn writers(context: &Context, alloc: &Allocation) -> Vec<String> {
    own_users(alloc).map(str::to_owned).chain(context.task_dir_users.iter().cloned()).collect()
}

fn own_users(alloc: &Allocation) -> impl Iterator<Item = &str> {
    tasks(alloc).filter_map(machine_user)
}

fn tasks(alloc: &Allocation) -> impl Iterator<Item = &Task> {
    alloc.group().map(|group| &group.tasks).into_iter().flatten()
}

/// The user of a task on this machine; none for a task that runs an image, whose users this machine does not know.
pub(super) fn machine_user(task: &Task) -> Option<&str> {
    driver::machine_user(&task.driver, task.user.as_deref())
}

/// Whether a driver mounts the volumes of its tasks itself. The agent can't: it does not see the file system of a container or
/// another root.
pub(super) fn mounts_volumes(driver: &DriverInfo) -> bool {
    match driver.capabilities.fs_isolation {
        FsIsolation::Chroot | FsIsolation::Image => true,
        FsIsolation::None => false,
    }
}

/// The mounts of a task's volumes.
pub async fn mounts(
    context: &Arc<Context>,
    workload: &Workload,
    sources: &[MountSource],
    verb: PlaceVerb,
) -> Outcome {
    let entries = context.drivers.entries();
    let driver = workload.task().and_then(|task| entries.get(&task.driver));
    if driver.is_some_and(|driver| mounts_volumes(&driver.info)) {
        return match verb {
            PlaceVerb::Up | PlaceVerb::Down => Outcome::Done(None),
            PlaceVerb::Inspect => Outcome::Present(None),
        };
    }
    let mounts = TaskMounts::new(task_path(context, workload), context.privileges);
    let bindings: Result<Vec<Binding>, MountError> = sources
        .iter()
        .map(|source| {
            Ok(Binding {
                source: PathBuf::from(&source.path),
                destination: Destination::parse(&source.destination)?,
                access: if source.read_only { Access::ReadOnly } else { Access::ReadWrite },
            })
        })
        .collect();
    let bindings = match (bindings, verb) {
        (Ok(bindings), _) => bindings,
        // All destinations are checked before anything is mounted, so nothing is.
        (Err(_), PlaceVerb::Down) => return Outcome::Done(None),
        (Err(_), PlaceVerb::Inspect) => return Outcome::Absent,
        (Err(error), PlaceVerb::Up) => return failed(error.class(), &error),
    };
    blocking(move || {
        let result = match verb {
            PlaceVerb::Up => mounts.up(&bindings).map(|()| Outcome::Done(None)),
            PlaceVerb::Down => mounts.down(&bindings).map(|()| Outcome::Done(None)),
            PlaceVerb::Inspect => mounts.inspect(&bindings).map(|seen| inspected(seen, None)),
        };
        result.unwrap_or_else(|error| failed(error.class(), &error))
    })
    .await
}

/// A host volume.
pub async fn volume(context: &Arc<Context>, volume: &Arc<Volume>, verb: PlaceVerb) -> Outcome {
    let volumes = HostVolumes::new(context.paths.clone(), context.privileges);
    let volume = Arc::clone(volume);
    blocking(move || {
        let result = match verb {
            PlaceVerb::Up => volumes
                .up(&volume)
                .map(|path| Outcome::Done(Some(Facts::rooted(path.to_string_lossy().into_owned())))),
            PlaceVerb::Down => volumes.purge(&volume).map(|()| Outcome::Done(None)),
            PlaceVerb::Inspect => volumes.inspect(&volume).map(|seen| inspected(seen, None)),
        };
        result.unwrap_or_else(|error| failed(error.class(), &error))
    })
    .await
}

/// A task's token files. They are removed with its directory.
pub async fn identity(context: &Arc<Context>, workload: &Workload, verb: PlaceVerb) -> Outcome {
    if verb == PlaceVerb::Up
        && let Some(task) = workload.task()
        && let Err(refusal) = identities::sign(context, &workload.alloc, task).await
    {
        return refusal.into();
    }
    let Some(task) = workload.task() else { return Refusal::from("find the task").into() };
    let access = match verb {
        PlaceVerb::Up => match file_access::find(context, task).await {
            Ok(access) => access,
            Err(refusal) => return refusal.into(),
        },
        PlaceVerb::Inspect => file_access::widest(task),
        PlaceVerb::Down => return Outcome::Done(None),
    };
    let (context, workload) = (Arc::clone(context), workload.clone());
    blocking(move || {
        let result = with_tokens(&context, &workload, access, |tokens, wanted| match verb {
            PlaceVerb::Up => tokens.up(wanted).map(|issued| Outcome::Done(Some(renewed(issued.renew_in)))),
            PlaceVerb::Down => Ok(Outcome::Done(None)),
            PlaceVerb::Inspect => tokens.inspect(wanted).map(|sight| match sight {
                Observation::Present => Outcome::Present(Some(renewed(tokens.renew_in(wanted)))),
                Observation::Absent | Observation::Foreign { .. } | Observation::Lost { .. } => {
                    Outcome::Absent
                }
            }),
        });
        match result {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(error)) => failed(error.class(), &error),
            Err(refusal) => refusal.into(),
        }
    })
    .await
}

/// Writes the payload of a dispatched job to the file that the task specifies.
pub async fn payload(context: &Arc<Context>, workload: &Workload) -> Result<(), Refusal> {
    let Some((task, file)) =
        workload.task().and_then(|task| task.dispatch_payload.clone().map(|file| (task, file)))
    else {
        return Ok(());
    };
    let dispatched = workload.alloc.job.dispatched();
    let Some((payload, _)) = dispatched.filter(|(payload, _)| !payload.is_empty()) else { return Ok(()) };
    let bytes = STANDARD.decode(payload).map_err(|error| Refusal {
        class: Class::Fatal,
        why: format!("write the payload: it is not base64: {error}"),
    })?;
    let access = file_access::find(context, task).await?;
    let dir = TaskDir::new(task_path(context, workload), context.privileges);
    let writing = herdlet_runtime::off_thread(move || {
        payload::write(&dir, Path::new(&file), &bytes, access)
            .map_err(|error| Refusal::of(error.class(), &error))
    });
    let failed = |error| Refusal::retry(format!("write the payload: {error}"));
    writing.await.map_err(failed)?
}

/// Fresh tokens for a task's environment, by identity name.
pub async fn env_tokens(context: &Arc<Context>, workload: &Workload) -> Result<Variables, Refusal> {
    let (context, workload) = (Arc::clone(context), workload.clone());
    let made = herdlet_runtime::off_thread(move || {
        let task = workload.task().ok_or("find the task")?;
        with_tokens(&context, &workload, file_access::widest(task), |tokens, wanted| {
            let names =
                wanted.iter().filter(|token| token.identity.env).map(|token| token.identity.name.clone());
            let made = tokens.env(wanted)?;
            Ok(names.zip(made).map(|(name, (_, token))| (name, token.reveal().to_owned())).collect())
        })
    });
    match made.await {
        Ok(Ok(Ok(variables))) => Ok(variables),
        Ok(Ok(Err(error))) => Err(Refusal::of(error.class(), &error)),
        Ok(Err(refusal)) => Err(refusal),
        Err(error) => Err(Refusal::retry(format!("sign tokens: {error}"))),
    }
}

/// Calls `act` with the task's token files and their desired contents.
fn with_tokens<T>(
    context: &Context,
    workload: &Workload,
    access: FileAccess,
    act: impl FnOnce(&TaskTokens<'_>, &[WantedToken]) -> Result<T, IdentityError>,
) -> Result<Result<T, IdentityError>, Refusal> {
    let task = workload.task().ok_or("find the task")?;
    let dir = TaskDir::new(task_path(context, workload), context.privileges);
    let wanted: Vec<WantedToken> = match &workload.alloc.server {
        None => {
            task.identities.iter().map(|of| token_spec(context, &workload.alloc, task, (of, None))).collect()
        }
        // Servers would not accept a token that we signed.
        Some(_) => {
            let mut given = identities::signed_by_servers(&context.server_tokens, workload.alloc.id, task)
                .map_err(|error| {
                    let why = format!("read the tokens signed by servers: {error}");
                    Refusal::retry(why)
                })?;
            let wanted = |of: &Identity| {
                Some(token_spec(context, &workload.alloc, task, (of, Some(given.remove(&of.name)?))))
            };
            task.identities.iter().filter_map(wanted).collect()
        }
    };
    let tokens = TaskTokens { signer: &context.signer, task_dir: &dir, task: &task.name, access };
    Ok(act(&tokens, &wanted))
}

fn token_spec(
    context: &Context,
    alloc: &Arc<Allocation>,
    task: &Task,
    (identity, given): (&Identity, Option<SignedToken>),
) -> WantedToken {
    let issued_at: UnixNanos = wall_now();
    let token_id = uuid::Uuid::new_v4().to_string();
    let claims = Claims::new(&Grant {
        alloc,
        holder: Holder::Task(task),
        identity,
        issued_at,
        token_id: &token_id,
        issuer: &context.issuer,
        node: &context.node.get(),
    });
    WantedToken {
        identity: identity.clone(),
        claims: serde_json::to_value(claims).unwrap_or_default(),
        given,
    }
}

fn task_path(context: &Context, workload: &Workload) -> PathBuf {
    let name = workload.task().map_or("", |task| task.name.as_str());
    context.paths.task(&workload.alloc.id, name)
}

/// Facts to renew after this time; never if none.
fn renewed(renew_in: Option<std::time::Duration>) -> Arc<Facts> {
    Facts::renewed_at(renew_in.map(|left| Deadline::after(present::now(), Duration::from_std(left))))
}

async fn blocking(work: impl FnOnce() -> Outcome + Send + 'static) -> Outcome {
    match herdlet_runtime::off_thread(work).await {
        Ok(outcome) => outcome,
        Err(error) => retry(format!("complete the operation: {error}")),
    }
}

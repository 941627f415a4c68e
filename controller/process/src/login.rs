//! The login of a task's user: what every driver of processes does with it.
//!
//! In: a user that was found, or why none was. Out: variables, errors of drivers.

use herdlet_api_types::{driver::machine_user, job::Task};
use herdlet_base::{
    observation::Class,
    user::{self, Credentials, Login, UserError},
};
use herdlet_driver::DriverError;

/// Adds the variables of a login that the task does not set itself.
pub(crate) fn add_to(variables: &mut Vec<(String, String)>, Login { name, home, shell }: &Login) {
    for (key, value) in [("HOME", home), ("LOGNAME", name), ("SHELL", shell), ("USER", name)] {
        if !value.is_empty() && variables.iter().all(|(known, _)| known != key) {
            variables.push((key.to_owned(), value.clone()));
        }
    }
}

/// The error of a task whose user can't be found.
pub(crate) fn no_user(error: UserError) -> DriverError {
    match error.class() {
        Class::Retry => DriverError::retry(error),
        Class::Fatal => DriverError::fatal(error),
    }
}

/// The name and the ids of the user of a task that is not to be started yet; none for the agent's own user, and while the name is not
/// known to this machine.
pub(crate) fn known_user(driver: &str, task: &Task) -> Option<(String, Credentials)> {
    let name = machine_user(driver, task.user.as_deref())?;
    Some((name.to_owned(), user::find(name).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_with_a_user_has_the_login_of_that_user() {
        let login = Login { name: "web".to_owned(), home: "/srv/web".to_owned(), shell: String::new() };
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut variables = vec![pair("PATH", "/bin"), pair("HOME", "/own")];
        add_to(&mut variables, &login);
        let expected = [("PATH", "/bin"), ("HOME", "/own"), ("LOGNAME", "web"), ("USER", "web")];
        assert_eq!(variables, expected.map(|(name, value)| pair(name, value)));
    }
}

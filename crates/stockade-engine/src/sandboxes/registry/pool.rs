//! Pools: sandboxes of one policy that wait, each for one command.
//!
//! There is nobody who keeps a pool. Whoever is taken from it has the next one
//! started, and all of these hold a shared lock on its record: it is there as
//! long as one of them is. Whether another is wanted is decided under
//! the registry's lock, so that there are never too many.

use std::fs::File;
use std::os::fd::AsFd;
use std::time::SystemTime;

use rustix::fs::{AtFlags, FlockOperation, OFlags, fstat, statat};
use stockade_sys::rustix;

use super::{Keeps, Litter, Name, Record, Registry, RegistryError, Reserved, State, write};
use crate::events::{RunId, time_text};
use crate::state::{StateError, system};

/// Which pool is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    pub name: Name,
    /// Tells it from a later one of the same name.
    pub id: String,
}

/// What became of whoever wanted to be of a pool.
#[derive(Debug)]
pub enum Joined {
    Member(Box<Reserved>),
    /// Enough are ready, or about to be.
    Full,
}

/// Keeps a pool in being; for one of its sandboxes or for who makes the first.
#[derive(Debug)]
pub struct Membership {
    registry: Registry,
    /// Its record, with a shared lock.
    file: File,
    pool: Pool,
}

impl Registry {
    /// Makes a pool of a name, or of one made up, that is to keep so many ready.
    /// It has none yet.
    pub fn found(&self, name: Option<Name>, size: u32) -> Result<Membership, RegistryError> {
        let _lock = self.lock()?;
        self.all(Litter::Goes)?;
        let id = RunId::generate();
        let id = id.map_err(|error| system("name a pool in", self.directory.path(), error))?;
        let (file, name) = self.make(name)?;
        let mut record = Record::new(name);
        record.since = time_text(SystemTime::now());
        record.state = State::Pool;
        let id = id.as_str().to_owned();
        let pool = Pool {
            name: record.name.clone(),
            id: id.clone(),
        };
        record.keeps = Some(Keeps { id, size });
        let mut founded = Membership::of(self, file, pool)?;
        let written = write(&mut founded.file, &record);
        written.map_err(|error| founded.failed("record", error))?;
        Ok(founded)
    }

    /// Whether there is a pool of this name.
    pub(in crate::sandboxes) fn has_pool(&self, name: &Name) -> Result<bool, StateError> {
        Ok(self.look()?.iter().any(|one| one.is_pool(name)))
    }

    /// Whether a pool is there and wants another sandbox.
    pub fn wants(&self, pool: &Pool) -> Result<bool, RegistryError> {
        let _lock = self.lock()?;
        self.lacks(pool)
    }

    /// Makes a name for a sandbox of a pool.
    pub fn join(&self, pool: &Pool) -> Result<Joined, RegistryError> {
        let _lock = self.lock()?;
        if !self.lacks(pool)? {
            return Ok(Joined::Full);
        }
        let membership = Membership::of(self, self.open_record(pool)?, pool.clone())?;
        let reserved = self.take(None, Some(membership))?;
        Ok(Joined::Member(Box::new(reserved)))
    }

    fn open_record(&self, pool: &Pool) -> Result<File, RegistryError> {
        let name = pool.name.record();
        let file = self.directory.open_existing(&name, OFlags::RDWR)?;
        file.ok_or_else(|| RegistryError::Disbanded(pool.name.clone()))
    }

    /// The caller holds the lock.
    fn lacks(&self, pool: &Pool) -> Result<bool, RegistryError> {
        let all = self.all(Litter::Goes)?;
        let record = all.iter().find(|one| one.is_pool(&pool.name));
        let keeps = record.and_then(|record| record.keeps.as_ref());
        let keeps = keeps.filter(|keeps| keeps.id == pool.id);
        let keeps = keeps.ok_or_else(|| RegistryError::Disbanded(pool.name.clone()))?;
        let spare = all.iter().filter(|one| one.is_spare_of(&pool.name));
        Ok(spare.count() < keeps.size as usize)
    }

    /// Ends a pool: no other sandbox is made for it. Those that it has are left;
    /// `None` when there is no such pool.
    pub(in crate::sandboxes) fn disband(
        &self,
        name: &Name,
    ) -> Result<Option<Vec<Record>>, RegistryError> {
        let _lock = self.lock()?;
        let all = self.all(Litter::Goes)?;
        if !all.iter().any(|one| one.is_pool(name)) {
            return Ok(None);
        }
        self.remove(name);
        let spare = all.into_iter().filter(|one| one.is_spare_of(name));
        Ok(Some(spare.collect()))
    }
}

impl Membership {
    fn of(registry: &Registry, file: File, pool: Pool) -> Result<Self, RegistryError> {
        let one = Self {
            registry: registry.clone(),
            file,
            pool,
        };
        one.hold(&one.file)?;
        Ok(one)
    }

    fn hold(&self, file: &File) -> Result<(), RegistryError> {
        let shared = FlockOperation::NonBlockingLockShared;
        let held = rustix::fs::flock(file, shared);
        held.map_err(|errno| self.failed("lock", errno.into()))
    }

    /// The same once more, for another process: the lock is let go with the last
    /// descriptor of the file. The caller holds the registry's lock.
    pub(super) fn share(&self) -> Result<File, RegistryError> {
        // Opened anew: this one's own lock ends with it.
        let file = self.registry.open_record(&self.pool)?;
        self.check(&self.registry)?;
        self.hold(&file)?;
        Ok(file)
    }

    pub(super) fn pool(&self) -> &Name {
        &self.pool.name
    }

    /// Which pool it is.
    pub fn which(&self) -> &Pool {
        &self.pool
    }

    /// Refuses once the pool was ended. The caller holds the registry's lock.
    pub(super) fn check(&self, registry: &Registry) -> Result<(), RegistryError> {
        let failed = |errno: rustix::io::Errno| self.failed("look for", errno.into());
        let own = fstat(self.file.as_fd()).map_err(failed)?;
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let named = statat(&registry.directory, self.pool.name.record(), flags);
        match named {
            Ok(named) if (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino) => Ok(()),
            Ok(_) | Err(rustix::io::Errno::NOENT) => {
                Err(RegistryError::Disbanded(self.pool.name.clone()))
            }
            Err(errno) => Err(failed(errno)),
        }
    }

    fn failed(&self, what: &'static str, error: std::io::Error) -> RegistryError {
        RegistryError::System {
            what,
            name: self.pool.name.clone(),
            error,
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        // The last one takes the record along; what is missed here is found as
        // litter.
        let Ok(_lock) = self.registry.lock() else {
            return;
        };
        let alone = rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive);
        if alone.is_ok() && self.check(&self.registry).is_ok() {
            self.registry.remove(&self.pool.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::registry;
    use super::*;

    fn member(registry: &Registry, pool: &Pool) -> Reserved {
        match registry.join(pool).unwrap() {
            Joined::Member(reserved) => *reserved,
            Joined::Full => panic!("the pool is full"),
        }
    }

    #[test]
    fn a_pool_has_as_many_as_it_keeps_and_those_that_were_taken() {
        let (_scratch, _state, registry) = registry();
        let name = Name::parse("pool").unwrap();
        let founded = registry.found(Some(name.clone()), 2).unwrap();
        let pool = founded.which().clone();
        assert!(matches!(
            registry.found(Some(name.clone()), 1),
            Err(RegistryError::Taken(_))
        ));
        let mut first = member(&registry, &pool);
        let _second = member(&registry, &pool);
        assert!(matches!(registry.join(&pool), Ok(Joined::Full)));
        first.publish(State::Ready).unwrap();
        assert!(!registry.wants(&pool).unwrap());
        first.publish(State::Running).unwrap();
        assert!(registry.wants(&pool).unwrap());
        let _third = member(&registry, &pool);
        assert!(matches!(registry.join(&pool), Ok(Joined::Full)));
    }

    #[test]
    fn a_pool_is_there_as_long_as_one_that_was_made_for_it() {
        let (_scratch, state, registry) = registry();
        let founded = registry.found(None, 1).unwrap();
        let pool = founded.which().clone();
        let one = member(&registry, &pool);
        drop(founded);
        assert!(registry.has_pool(&pool.name).unwrap());
        drop(one);
        assert!(registry.list().unwrap().is_empty());
        let left = std::fs::read_dir(registry.directory.path().as_path()).unwrap();
        assert_eq!(left.count(), 1, "only the lock is left");
        // Killed, all of them.
        let founded = registry.found(Some(pool.name.clone()), 1).unwrap();
        let copy = founded.file.try_clone().unwrap();
        std::mem::forget(founded);
        rustix::fs::flock(&copy, FlockOperation::Unlock).unwrap();
        let found = Registry::litter(&state).unwrap();
        assert_eq!(found, std::slice::from_ref(&pool.name));
        assert_eq!(registry.list().unwrap()[0].state, State::Gone);
        assert!(!registry.has_pool(&pool.name).unwrap());
    }

    #[test]
    fn nothing_is_made_or_gets_ready_for_a_pool_that_was_ended() {
        let (_scratch, _state, registry) = registry();
        let name = Name::parse("pool").unwrap();
        let founded = registry.found(Some(name.clone()), 2).unwrap();
        let pool = founded.which().clone();
        let mut starting = member(&registry, &pool);
        let spare = registry.disband(&name).unwrap().unwrap();
        assert_eq!(spare.len(), 1);
        assert_eq!(registry.disband(&name).unwrap(), None);
        let is_over = |error| matches!(error, RegistryError::Disbanded(over) if over == name);
        assert!(registry.join(&pool).is_err_and(is_over));
        assert!(starting.publish(State::Ready).is_err_and(is_over));
        // Not for one that has its name, either.
        let again = registry.found(Some(name.clone()), 2).unwrap();
        assert!(registry.join(&pool).is_err_and(is_over));
        assert!(starting.publish(State::Ready).is_err_and(is_over));
        drop((founded, starting));
        assert!(registry.wants(again.which()).unwrap());
    }
}

//! Random sequences of writes: tokens over many grants, deletes and restores, at the scale of real
//! revisions.

use super::*;
use crate::protocol::token::LEASES_PER_GRANT;

/// How far the runbook raises a restored store.
const BUMP: u64 = 1_000_000_000;
/// How many writes the bump leaves room for, between the backup and the restore: above it a write
/// after the restore would not lie 10^8 above everything that an agent saw before.
const ROOM: u64 = 890_000_000;
const AGENTS: usize = 3;

/// How the store numbers its writes.
#[derive(Clone, Copy, Debug)]
enum Scale {
    /// One by one, as etcd does.
    Counted,
    /// By the time in nanoseconds. Two writes of one object are at least 1 ms apart.
    Nanoseconds,
}

#[derive(Clone, Debug)]
enum Step {
    /// An agent lists the locks, and so sees how far the store is.
    List(usize),
    Acquire(usize),
    Queue(usize),
    Release,
    TakeOver(usize),
    Rebase,
    Delete,
    /// Other objects are written meanwhile, this often or for this long.
    Others(u64),
    Backup,
    Restore,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let who = 0..AGENTS;
    let step = prop_oneof![
        2 => who.clone().prop_map(Step::List),
        6 => who.clone().prop_map(Step::Acquire),
        6 => who.clone().prop_map(Step::Queue),
        6 => Just(Step::Release),
        2 => who.prop_map(Step::TakeOver),
        1 => Just(Step::Rebase),
        2 => Just(Step::Delete),
        3 => (0..200_000_000_u64).prop_map(Step::Others),
        1 => Just(Step::Backup),
        1 => Just(Step::Restore),
    ];
    prop::collection::vec(step, 0..200)
}

/// One lock in a store, and what agents know of it.
struct Run {
    scale: Scale,
    floor: u64,
    revision: u64,
    stored: Option<(Revision, Lock)>,
    backup: Option<(u64, Option<(Revision, Lock)>)>,
    seen: [Seen; AGENTS],
    grants: u64,
    /// The base of the last grant that was returned to an app.
    told: Option<Token>,
}

impl Run {
    fn new(scale: Scale, floor: u64) -> Self {
        let revision = match scale {
            Scale::Counted => 24_289,
            Scale::Nanoseconds => 1_760_342_223_637_167_018,
        };
        Self {
            scale,
            floor,
            revision,
            stored: None,
            backup: None,
            seen: [Seen::from_list(Revision(revision)); AGENTS],
            grants: 0,
            told: None,
        }
    }

    fn mint(&self, agent: usize) -> Mint {
        Mint {
            seen: self.seen[agent],
            floor: self.floor,
        }
    }

    fn next_revision(&mut self) -> Revision {
        self.revision += match self.scale {
            Scale::Counted => 1,
            Scale::Nanoseconds => 1_000_000,
        };
        Revision(self.revision)
    }

    fn write(&mut self, agent: usize, lock: Lock) -> Revision {
        let written = self.next_revision();
        self.seen[agent].note(written);
        self.stored = Some((written, lock));
        written
    }

    /// The lock was written by one agent; the holder is answered, with a larger token first where that is due.
    fn written(&mut self, writer: usize, lock: &Lock) -> Result<(), TestCaseError> {
        let held_before = self
            .stored
            .as_ref()
            .and_then(|(_, lock)| lock.grant.clone());
        // Writer and receiver judge by what the writer had seen before this write.
        let receiver = lock.holder_session().map(number_of);
        let mint = self.mint(receiver.unwrap_or(writer));
        let written = self.write(writer, lock.clone());
        let (Some(receiver), Some(grant)) = (receiver, lock.grant.clone()) else {
            return Ok(());
        };
        if held_before.is_some_and(|before| before.id == grant.id) {
            return Ok(());
        }
        let mut token = lock.token;
        self.seen[receiver].note(written);
        if mint.must_raise(token, written) {
            let raised = lock.rebase(written, &self.mint(receiver), &grant.key());
            let raised = raised.expect("there are tokens").expect("it holds");
            token = raised.token;
            self.write(receiver, raised);
        }
        if let Some(told) = self.told {
            prop_assert!(
                token.get() >= told.get() + LEASES_PER_GRANT,
                "{told} then {token}"
            );
        }
        self.told = Some(token);
        Ok(())
    }

    fn claim(&mut self, agent: usize, waits: bool) -> Result<(), TestCaseError> {
        if self.stored.is_none() {
            self.write(agent, free());
        }
        self.grants += 1;
        let claim = claim(agent, &format!("g{}", self.grants));
        let Some((at, lock)) = self.stored.clone() else {
            return Ok(());
        };
        let mint = self.mint(agent);
        let decision = if waits {
            lock.acquire_or_queue(at, &mint, &claim)
        } else {
            lock.acquire(at, &mint, &claim)
        };
        match decision {
            Decision::Granted(next) => self.written(agent, &next),
            Decision::Queued(waiter) => {
                let joined = lock.joined_by(*waiter).expect("it may join");
                self.written(agent, &joined)
            }
            _ => Ok(()),
        }
    }

    fn take(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let stored = self.stored.clone();
        match (step, stored) {
            (Step::List(agent), _) => {
                let listed = Revision(self.revision);
                prop_assert!(self.seen[*agent].list_answered(listed).is_ok());
            }
            (Step::Acquire(agent), _) => self.claim(*agent, false)?,
            (Step::Queue(agent), _) => self.claim(*agent, true)?,
            (Step::Release, Some((at, lock))) => {
                if let Some(grant) = lock.grant.clone() {
                    let agent = number_of(&grant.holder.session);
                    let next = lock.release(at, &self.mint(agent), &grant.key(), WallTime(0));
                    self.written(agent, &next.expect("it holds"))?;
                }
            }
            (Step::TakeOver(agent), Some((at, lock))) => {
                let dead = lock.holder_session().cloned();
                let is_dead = |who: &Claimant| Some(&who.session) == dead.as_ref();
                let next = lock.take_over(at, &self.mint(*agent), is_dead, &ending(), None);
                if let Some(next) = next {
                    self.written(*agent, &next)?;
                }
            }
            (Step::Rebase, Some((at, lock))) => {
                if let Some(grant) = lock.grant.clone() {
                    let agent = number_of(&grant.holder.session);
                    let next = lock.rebase(at, &self.mint(agent), &grant.key());
                    let next = next.expect("there are tokens").expect("it holds");
                    self.write(agent, next);
                    self.told = self
                        .stored
                        .as_ref()
                        .map(|(_, lock)| lock.token)
                        .max(self.told);
                }
            }
            (Step::Delete, Some(_)) => {
                self.next_revision();
                self.stored = None;
            }
            (Step::Others(writes), _) => self.others(*writes),
            (Step::Backup, stored) => self.backup = Some((self.revision, stored)),
            (Step::Restore, _) => self.restore(),
            (Step::Release | Step::TakeOver(_) | Step::Rebase | Step::Delete, None) => {}
        }
        Ok(())
    }

    /// A backup is restored in time: the runbook's bump has room for that many writes.
    fn others(&mut self, writes: u64) {
        let room = self.backup.as_ref().map_or(u64::MAX, |(at, _)| at + ROOM);
        if self.revision + writes < room || matches!(self.scale, Scale::Nanoseconds) {
            self.revision += writes;
        }
    }

    /// Only a store that counts its writes is restored with a bump. One that numbers them by the time continues above
    /// the backup automatically; its lost tokens are out of scope here.
    fn restore(&mut self) {
        if let (Scale::Counted, Some((revision, stored))) = (self.scale, self.backup.take()) {
            self.revision = revision + BUMP;
            self.stored = stored;
        }
    }
}

fn number_of(session: &SessionId) -> usize {
    session.as_str()[1..]
        .parse()
        .expect("a session is named after its agent")
}

fn tokens_rise_over(steps: &[Step], scale: Scale, floor: u64) -> Result<(), TestCaseError> {
    let mut run = Run::new(scale, floor);
    steps.iter().try_for_each(|step| run.take(step))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn tokens_rise_over_every_sequence_of_counted_writes(
        steps in steps(),
        floor in prop_oneof![Just(0), 0..1_u64 << 50],
    ) {
        tokens_rise_over(&steps, Scale::Counted, floor)?;
    }

    #[test]
    fn tokens_rise_where_revisions_are_nanoseconds(
        steps in steps(),
        floor in prop_oneof![Just(0), 0..1_u64 << 50],
    ) {
        tokens_rise_over(&steps, Scale::Nanoseconds, floor)?;
    }
}

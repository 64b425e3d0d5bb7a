//! The state file itself: it is rewritten when it has grown, at any record, and a failing disk costs no more than it
//! must.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use leasehold::agent::Journal;

use super::*;

/// How many outdated records the file has when it is rewritten.
const GARBAGE: u64 = 256 * 1024;

/// What a disk refuses.
#[derive(Default)]
struct Refuses {
    append: AtomicBool,
    replace: AtomicBool,
    void: AtomicBool,
}

/// A state file on a disk that may refuse.
struct Disk {
    file: StateFile,
    refuses: Arc<Refuses>,
    /// The most that the file took, with a new one beside it.
    taken: Arc<AtomicU64>,
}

impl Disk {
    fn asked(refuses: &AtomicBool) -> io::Result<()> {
        if refuses.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

impl Journal for Disk {
    fn append(&mut self, record: &[u8]) -> io::Result<()> {
        Self::asked(&self.refuses.append)?;
        self.file.append(record)?;
        self.taken.fetch_max(self.file.bytes(), Ordering::SeqCst);
        Ok(())
    }

    fn replace(
        &mut self,
        records: &mut dyn Iterator<Item = io::Result<Vec<u8>>>,
    ) -> io::Result<()> {
        Self::asked(&self.refuses.replace)?;
        let before = self.file.bytes();
        self.file.replace(records)?;
        self.taken
            .fetch_max(before + self.file.bytes(), Ordering::SeqCst);
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.file.bytes()
    }

    fn void(&mut self) -> io::Result<()> {
        Self::asked(&self.refuses.void)?;
        self.file.void()
    }

    fn set_aside(&mut self) -> io::Result<PathBuf> {
        self.file.set_aside()
    }
}

impl Node {
    fn size(&self) -> u64 {
        fs::metadata(self.file()).unwrap().len()
    }

    /// Starts the sidecar on a disk that fails on demand.
    fn start_on_disk(&self) -> (Pod, Arc<Refuses>) {
        self.start_on_disk_with(Arc::default())
    }

    fn start_on_disk_with(&self, taken: Arc<AtomicU64>) -> (Pod, Arc<Refuses>) {
        let refuses = Arc::new(Refuses::default());
        let mut file = StateFile::open(self.directories.last().unwrap().path())
            .unwrap()
            .unwrap();
        let past = file.read().unwrap();
        let disk = Disk {
            file,
            refuses: refuses.clone(),
            taken,
        };
        let pod = self.start_from(
            |_| {},
            Memory {
                journal: Box::new(disk),
                past,
                boot_id: "boot".into(),
                namespace: "team-a".into(),
            },
        );
        (pod, refuses)
    }

    /// Writes outdated records, until the next record of any kind finds the file too large. It was `begun` bytes long
    /// at first.
    fn fill(&self, pod: &Pod, lease: &LeaseView, begun: u64) {
        for seconds in (60..=61).cycle() {
            if self.size() > 2 * begun + GARBAGE {
                return;
            }
            let ttl = Duration::from_secs(seconds);
            pod.agent.renew(&lease.lease, Some(ttl), pod.now()).unwrap();
        }
    }
}

#[tokio::test]
async fn file_rewritten_by_an_acquire_contains_its_lease() {
    let mut node = Node::new();
    let pod = node.start();
    let begun = node.size();
    let kept = pod.lease("kept").await;
    node.fill(&pod, &kept, begun);
    let full = node.size();
    let answer = pod.acquire_as("r", Some("id-1")).await;
    let Ok(Acquired::Granted { lease, .. }) = answer else {
        panic!("{answer:?}");
    };
    assert!(node.size() < full, "it was not written anew");
    let pod = node.kill_and_start(&pod);
    for lease in [&kept, &lease] {
        let again = renewed(&pod, lease).await.unwrap();
        assert_eq!((&again.lease, again.token), (&lease.lease, lease.token));
    }
    let repeated = pod.acquire_as("r", Some("id-1")).await;
    assert!(
        matches!(&repeated, Ok(Acquired::Granted { lease: again, replayed: true }) if again.lease == lease.lease),
        "{repeated:?}"
    );
}

#[tokio::test]
async fn file_rewritten_by_a_release_contains_its_end() {
    let mut node = Node::new();
    let pod = node.start();
    let begun = node.size();
    let kept = pod.lease("kept").await;
    let Ok(Acquired::Granted { lease, .. }) = pod.acquire_as("r", Some("id-1")).await else {
        panic!("not granted");
    };
    node.fill(&pod, &kept, begun);
    let full = node.size();
    pod.agent.release(&lease.lease).await.unwrap();
    assert!(node.size() < full, "it was not written anew");
    let pod = node.kill_and_start(&pod);
    renewed(&pod, &kept).await.unwrap();
    let over = pod.agent.renew(&lease.lease, None, pod.now());
    assert_eq!(over, Err(LeaseError::Released));
    let repeated = pod.acquire_as("r", Some("id-1")).await;
    assert!(
        matches!(repeated, Err(AcquireError::RequestEnded { .. })),
        "{repeated:?}"
    );
    assert_eq!(pod.agent.release(&lease.lease).await, Ok(Released::Done));
}

#[tokio::test(start_paused = true)]
async fn rewritten_file_keeps_an_undelivered_answer_undelivered() {
    let mut node = Node::in_paused_time();
    let pod = node.start();
    let begun = node.size();
    let kept = pod.lease("kept").await;
    {
        let hung_up = pod.acquire_as("r", Some("id-1"));
        tokio::pin!(hung_up);
        assert!(futures::poll!(hung_up).is_pending());
    }
    eventually("the lock was taken", || !pod.is_free("r")).await;
    eventually("nobody repeated it", || pod.is_free("r")).await;
    node.fill(&pod, &kept, begun);
    let full = node.size();
    pod.lease("s").await;
    assert!(node.size() < full, "it was not written anew");
    let pod = node.kill_and_start(&pod);
    renewed(&pod, &kept).await.unwrap();
    let repeated = pod.acquire_as("r", Some("id-1")).await;
    let is_first = |answer: &_| {
        matches!(
            answer,
            Ok(Acquired::Granted {
                replayed: false,
                ..
            })
        )
    };
    assert!(is_first(&repeated), "{repeated:?}");
}

#[tokio::test]
async fn file_that_cannot_be_rewritten_grows_and_stays_valid() {
    let mut node = Node::new();
    let (pod, refuses) = node.start_on_disk();
    let begun = node.size();
    let kept = pod.lease("kept").await;
    refuses.replace.store(true, Ordering::SeqCst);
    node.fill(&pod, &kept, begun);
    let full = node.size();
    let lease = pod.lease("r").await;
    assert!(node.size() > full);
    // It is not tried with each record from then on; there is room again before the next try.
    node.fill(&pod, &kept, full);
    refuses.replace.store(false, Ordering::SeqCst);
    let full = node.size();
    let third = pod.lease("s").await;
    assert!(
        node.size() < full,
        "it is written anew as soon as it can be"
    );
    let pod = node.kill_and_start(&pod);
    for lease in [&kept, &lease, &third] {
        assert_eq!(renewed(&pod, lease).await.unwrap().token, lease.token);
    }
}

#[tokio::test]
async fn full_disk_removes_the_file_and_the_agent_continues() {
    let node = Node::new();
    let (pod, refuses) = node.start_on_disk();
    assert!(node.file().exists());
    refuses.append.store(true, Ordering::SeqCst);
    let lease = pod.lease("r").await;
    assert!(!node.file().exists(), "a file with gaps would lie");
    pod.agent.renew(&lease.lease, None, pod.now()).unwrap();
}

/// The file stays, and is an older copy of what it should be: every later promise is over before another pod has the
/// lock.
#[tokio::test(start_paused = true)]
async fn unremovable_file_with_gaps_releases_nothing_too_early() {
    let mut node = Node::in_paused_time();
    let (pod, refuses) = node.start_on_disk();
    let kept = pod.lease("kept").await;
    refuses.append.store(true, Ordering::SeqCst);
    refuses.void.store(true, Ordering::SeqCst);
    let arrived = pod.now();
    let lease = pod.lease("r").await;
    let told_until = arrived.after(lease.valid_for);
    pod.agent.renew(&lease.lease, None, pod.now()).unwrap();
    let pod = node.kill_and_start(&pod);
    renewed(&pod, &kept).await.unwrap();
    let unknown = pod.agent.renew(&lease.lease, None, pod.now());
    assert_eq!(unknown, Err(LeaseError::Unknown));
    assert_stays_held_until(&node, &pod, "r", told_until).await;
}

/// Its app ended it, and its readers may still believe: the file records its end.
#[tokio::test(start_paused = true)]
async fn rewritten_file_records_the_end_of_a_lead() {
    let mut node = Node::in_paused_time();
    let pod = node.start();
    let begun = node.size();
    let (kept, lead) = (pod.lease("kept").await, pod.lease("election:e").await);
    let told_until = pod.now().after(lead.valid_for);
    let election = leasehold::protocol::election::ElectionName::parse("e").unwrap();
    let view = pod.agent.election(&election, pod.now()).await.unwrap();
    assert!(view.lead.is_some());
    let releasing = futures::FutureExt::now_or_never(pod.agent.release(&lead.lease));
    assert_eq!(releasing, None, "its readers' time is not over");
    node.fill(&pod, &kept, begun);
    let full = node.size();
    let before = pod.now();
    pod.lease("s").await;
    assert!(node.size() < full, "it was not written anew");
    assert_eq!(pod.now(), before, "the lead is there still");
    let pod = node.kill_and_start(&pod);
    renewed(&pod, &kept).await.unwrap();
    let over = pod.agent.renew(&lead.lease, None, pod.now());
    assert_eq!(over, Err(LeaseError::Released));
    assert_stays_held_until(&node, &pod, "election:e", told_until).await;
    assert_eq!(pod.agent.release(&lead.lease).await, Ok(Released::Done));
}

/// The end is not on file because the disk is full, and the release goes out: nothing that the file
/// says is gone on with, whether it could be removed or not.
#[tokio::test(start_paused = true)]
async fn release_the_disk_refused_is_not_resumed_as_a_lease() {
    for is_removed in [true, false] {
        let mut node = Node::in_paused_time();
        let (pod, refuses) = node.start_on_disk();
        let lease = pod.lease("r").await;
        refuses.append.store(true, Ordering::SeqCst);
        refuses.void.store(!is_removed, Ordering::SeqCst);
        assert_eq!(pod.agent.release(&lease.lease).await, Ok(Released::Done));
        assert!(pod.is_free("r") && node.file().exists() != is_removed);
        let pod = node.kill_and_start(&pod);
        let over = if is_removed {
            Err(LeaseError::Unknown)
        } else {
            lost(Loss::GrantGone)
        };
        assert_eq!(renewed(&pod, &lease).await, over);
        assert!(pod.lease("r").await.token > lease.token);
    }
}

/// Each lease has its own reason on file, and not that of the restart.
#[tokio::test(start_paused = true)]
async fn next_process_knows_why_a_session_was_lost() {
    let mut node = Node::in_paused_time();
    let pod = node.start();
    let lease = pod.lease("r").await;
    let session = node.store.session_of("r").unwrap();
    node.store.revoke_session(&session);
    let revoked = lost(Loss::SessionRevoked);
    eventually("the session is lost", || {
        pod.agent.lease(&lease.lease, pod.now()) == revoked
    })
    .await;
    let pod = node.kill_and_start(&pod);
    assert_eq!(pod.agent.lease(&lease.lease, pod.now()), revoked);
}

/// The volume that an injected sidecar has for its state, in bytes.
fn injected_room() -> u64 {
    let made = crate::pods::made(&serde_json::json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "labels": {"leasehold.dev/inject": "true"}},
        "spec": {"containers": [{"name": "app", "image": "app"}]},
    }));
    let made = made.expect("it must be made");
    let volumes = made["spec"]["volumes"].as_array().unwrap();
    let state = volumes.iter().find(|one| one["name"] == "leasehold-state");
    let limit = state.unwrap()["emptyDir"]["sizeLimit"].as_str().unwrap();
    let mebibytes = limit.strip_suffix("Mi").expect("it is in Mi");
    mebibytes.parse::<u64>().unwrap() * 1024 * 1024
}

/// With fewer leases, whose records are all of one size; the file grows with them alone.
#[tokio::test]
async fn ten_thousand_leases_fit_into_the_injected_volume() {
    const LEASES: u64 = 200;

    let mut node = Node::new();
    let taken = Arc::new(AtomicU64::new(0));
    let (pod, _) = node.start_on_disk_with(taken.clone());
    let mut leases = Vec::new();
    for n in 0..LEASES {
        let resource = format!("tenant_{n:05}:billing-close:2026-04");
        leases.push(pod.lease(&resource).await);
    }
    // The largest size: rewritten as late as possible, with every lease.
    let (mut begun, mut written_anew) = (node.size(), 0);
    for seconds in (60..=61).cycle() {
        let before = node.size();
        let ttl = Some(Duration::from_secs(seconds));
        pod.agent.renew(&leases[0].lease, ttl, pod.now()).unwrap();
        if node.size() < before {
            (begun, written_anew) = (node.size(), written_anew + 1);
            if written_anew == 2 {
                break;
            }
        }
    }
    let taken = taken.load(Ordering::SeqCst);
    let each = begun.div_ceil(LEASES);
    let most = |leases| 3 * each * leases + GARBAGE;
    let of_10_000 = most(10_000);
    println!("{each} bytes a lease; at most {taken} with {LEASES}, {of_10_000} with 10,000");
    let records = 1_000;
    assert!(
        taken > 2 * begun + GARBAGE,
        "both files are there for a moment"
    );
    assert!(taken < most(LEASES) + records, "{taken}");
    // A file that was refused takes as much as the one in use.
    assert!(2 * of_10_000 <= injected_room(), "{of_10_000}");
    let pod = node.kill_and_start(&pod);
    for lease in leases {
        let again = renewed(&pod, &lease).await.expect("the lease must go on");
        assert_eq!(again.token, lease.token);
    }
}

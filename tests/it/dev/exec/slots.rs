//! `--concurrency`: as many commands run at once as there are slots, each under a lock and a token of its
//! own.

use std::collections::BTreeMap;

use super::*;

/// Writes its slot to `slot-OF`, then its process id to `pid-OF`, and runs until `end-OF` exists.
fn runs_in_a_slot(of: &str) -> String {
    format!(
        "echo \"$LEASEHOLD_SLOT $LEASEHOLD_RESOURCE\" >slot-{of}; echo $$ >pid-{of}; \
         while [ ! -e end-{of} ]; do sleep 0.05; done"
    )
}

impl Server {
    /// Starts an exec with two slots, and waits until its command runs. Returns its slot, too.
    async fn in_a_slot(&self, of: &str) -> (Exec, String) {
        let exec = self.spawn(&["--concurrency=2"], &runs_in_a_slot(of));
        exec.pid(&format!("pid-{of}")).await;
        let file = self.folder.path().join(format!("slot-{of}"));
        let slot = eventually(async || {
            fs::read_to_string(&file)
                .ok()?
                .strip_suffix('\n')
                .map(str::to_owned)
        })
        .await;
        (exec, slot)
    }
}

#[tokio::test]
async fn third_command_waits_for_one_of_two_slots() {
    let server = Server::start().await;
    let (a, in_a) = server.in_a_slot("a").await;
    let (b, in_b) = server.in_a_slot("b").await;
    let mut slots = [in_a.as_str(), &in_b];
    slots.sort_unstable();
    assert_eq!(slots, ["1 job/slot-1", "2 job/slot-2"]);
    for flags in [
        ["--concurrency=2", "--if-held=fail"],
        ["--concurrency=2", "--wait-timeout=1"],
    ] {
        let (code, said) = server.run(&flags, "echo ran >ran");
        assert_eq!(code, Some(200), "{said}");
    }
    let (code, said) = server.run(&["--concurrency=2", "--if-held=skip"], "echo ran >ran");
    assert_eq!(code, Some(0), "{said}");
    assert!(!server.folder.path().join("ran").exists());

    // Whichever slot becomes free first, a waiter gets it.
    let log = server.folder.path().join("log");
    let mut third = server.exec(&["--concurrency=2"], &runs_in_a_slot("c"));
    let third = Exec {
        process: third
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap(),
        folder: server.folder.path().to_owned(),
    };
    let waits = async || {
        fs::read_to_string(&log)
            .unwrap()
            .contains("waiting")
            .then_some(())
    };
    eventually(waits).await;
    kill_process(b.front(), Signal::KILL).unwrap();
    third.pid("pid-c").await;
    assert_eq!(lines_of(server.folder.path(), "slot-c"), [in_b]);
    // It left the queue of the other slot.
    for (exec, of) in [(a, "a"), (third, "c")] {
        fs::write(server.folder.path().join(format!("end-{of}")), "").unwrap();
        assert_eq!(exec.ended(), Some(0));
    }
    let (code, said) = server.run(&["--concurrency=1", "--if-held=fail"], "true");
    assert_eq!(code, Some(0), "{said}");
}

#[tokio::test]
async fn no_slot_is_used_twice_at_once() {
    const SCRIPT: &str = "mkdir slot-$LEASEHOLD_SLOT || touch overlap
        echo \"$LEASEHOLD_SLOT $LEASEHOLD_TOKEN\" >>runs; sleep 0.2
        rmdir slot-$LEASEHOLD_SLOT";

    let server = Server::start().await;
    let execs: Vec<_> = (0..8)
        .map(|_| server.spawn(&["--concurrency=3"], SCRIPT))
        .collect();
    for exec in execs {
        assert_eq!(exec.ended(), Some(0));
    }
    let folder = server.folder.path();
    assert!(!folder.join("overlap").exists());
    let mut tokens: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for run in lines_of(folder, "runs") {
        let (slot, token) = run.split_once(' ').unwrap();
        tokens
            .entry(slot.to_owned())
            .or_default()
            .push(token.parse().unwrap());
    }
    assert_eq!(tokens.keys().collect::<Vec<_>>(), ["1", "2", "3"]);
    assert_eq!(tokens.values().map(Vec::len).sum::<usize>(), 8);
    assert!(
        tokens
            .values()
            .all(|tokens| tokens.is_sorted_by(|a, b| a < b)),
        "{tokens:?}"
    );
}

module leasehold.dev/go/leasehold

go 1.24.0

require golang.org/x/sys v0.35.0

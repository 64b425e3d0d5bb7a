package leasehold

// Version is the version of this package, as the sidecar sees it in the header User-Agent.
const Version = "0.1.0"

# The operator, the sidecar and everything else are one static binary, and nothing is beside it: no shell,
# no libraries, no certificates (who must be trusted comes with the ServiceAccount's token).
# `make image` builds it, and lays the binary and this file into a folder of their own first.
FROM scratch
COPY leasehold /leasehold
USER 65532:65532
ENTRYPOINT ["/leasehold"]

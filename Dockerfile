# One static binary contains the operator, the sidecar and all other commands. The image has nothing else: no shell,
# no libraries, no certificates (the trusted CA is mounted with the ServiceAccount's token).
# `make image` builds the image, from a directory that contains only the binary.
FROM scratch
COPY leasehold /leasehold
USER 65532:65532
ENTRYPOINT ["/leasehold"]
